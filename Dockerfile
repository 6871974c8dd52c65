# The page with its kernels, for a machine with an NVIDIA GPU; a Space of the Docker kind builds this file. It
# needs no GPU to build. Run: docker run --gpus all -p 7860:7860 -v explorer-data:/data quantization-explorer
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04

# Versions are the distribution's, which mends their faults.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

ENV VIRTUAL_ENV=/opt/venv PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1
# pycuda is linked against the driver's library, of which a build machine has the toolkit's stub alone.
ENV CUDA_ROOT=/usr/local/cuda LIBRARY_PATH=/usr/local/cuda/lib64/stubs
WORKDIR /srv/explorer
COPY requirements.txt requirements-gpu.txt ./
RUN python3 -m venv /opt/venv && pip install -r requirements.txt && pip install -r requirements-gpu.txt

COPY . .
# Every kernel for every chip from Turing on, so that no visitor waits for nvcc.
RUN mkdir -p /opt/kernels && EXPLORER_KERNEL_CACHE=/opt/kernels python -m explorer compile \
    --arch sm_75 --arch sm_80 --arch sm_86 --arch sm_89 --arch sm_90a --arch sm_100a --arch sm_120a \
    > /opt/kernels/compiled.txt

# What is written while the page runs lies in /data, and nowhere else.
RUN mkdir -p /data && chown 1000:1000 /data
ENV EXPLORER_HOSTED=1 EXPLORER_BUILT_KERNELS=/opt/kernels EXPLORER_KERNEL_CACHE=/data/kernels \
    GRADIO_SERVER_NAME=0.0.0.0 GRADIO_TEMP_DIR=/data/uploads HF_HOME=/data/huggingface \
    HOME=/data MPLCONFIGDIR=/data TMPDIR=/data
USER 1000
EXPOSE 7860
VOLUME /data
HEALTHCHECK --interval=30s --timeout=5s --start-period=90s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:7860/health', timeout=4)"]
CMD ["python", "app.py"]
