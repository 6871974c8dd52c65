"""Start the page: ``python app.py``, then http://localhost:7860. Also the entry point of a hosted Space.

It is ``explorer page`` and takes the same options. ``GRADIO_SERVER_PORT`` sets another port.
``EXPLORER_HOSTED`` (1 or 0) declares it public or local.
"""

import sys

from explorer.cli import main

if __name__ == "__main__":
    sys.exit(main(["page", *sys.argv[1:]]))
