/* Answers that Gradio's client would lose. It reads all of a visitor's answers from one stream, which the
   server ends with the message "close_stream" when nothing is left to answer. A request that the server has
   taken just after that, and that the client has registered just before it reads the message, is never heard
   of again, until some other request opens the next stream: on a busy page a click seems lost.

   Here the stream's messages pass on their way to the client. Where a request is still open when the stream
   ends, the next one is opened in its place and the client reads on. */
explorer.stream = {
  /* The ids of requests that were taken and have not been answered. */
  open: new Set(),

  /* The ids of requests whose answer came before the word that they were taken. */
  early: new Set(),

  /* When the server last said something of what it was asked, in the page's milliseconds. */
  heard: 0,

  /* Settled once the client has read the last "close_stream". */
  closed: Promise.resolve(),

  async fetch(original, input, options) {
    const address = new URL(input.url || input, document.baseURI).pathname;
    if (address.endsWith('/queue/join')) {
      return this.join(await original(input, options).catch(() => this.refusal()));
    }
    if (!address.endsWith('/queue/data')) return original(input, options);
    const again = () => original(input.clone ? input.clone() : input, options);
    const first = await again();
    if (!first.ok || !first.body) return first;
    const body = new ReadableStream({start: controller => this.pass(first, again, controller)});
    return new Response(body, {status: first.status, headers: first.headers});
  },

  /* The answer to a request that did not get through. Gradio takes an error of the network for the end of the
     connection, and loads the page anew. */
  refusal() {
    return new Response(JSON.stringify({detail: 'The server does not answer.'}), {status: 504});
  },

  async join(response) {
    if (!response.ok) explorer.lost();
    const answer = await response.clone().json().catch(() => null);
    if (answer?.event_id && !this.early.delete(answer.event_id)) this.open.add(answer.event_id);
    await this.closed;
    return response;
  },

  /* Pass the stream `response`, and those after it, on to `controller`. */
  async pass(response, again, controller) {
    try {
      while (response && await this.passOne(response, controller)) response = await again();
      controller.close();
    } catch (error) {
      explorer.lost();
      controller.error(error);
    }
  },

  /* Pass one stream on; true if it ended while requests were open. */
  async passOne(response, controller) {
    if (!response.ok) throw new Error(`the page's stream was refused: ${response.status}`);
    const reader = response.body.getReader(), decoder = new TextDecoder(), encoder = new TextEncoder();
    let text = '';
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return false;
      text += decoder.decode(value, {stream: true});
      const end = text.lastIndexOf('\n\n') + 2;
      if (end < 2) continue;
      for (const message of text.slice(0, end).split('\n\n').filter(Boolean)) {
        const kind = /"msg":"(\w+)"/.exec(message)?.[1];
        const id = kind === 'process_completed' && /"event_id":"([^"]+)"/.exec(message)?.[1];
        if (id && !this.open.delete(id)) this.early.add(id);
        if (kind !== 'heartbeat') this.heard = performance.now();
        if (kind === 'close_stream') {
          if (this.open.size) return true;
          this.closed = new Promise(resume => setTimeout(resume));
        }
        controller.enqueue(encoder.encode(message + '\n\n'));
      }
      text = text.slice(end);
    }
  },
};

{
  const original = window.fetch.bind(window);
  window.fetch = (input, options) => explorer.stream.fetch(original, input, options);
}
