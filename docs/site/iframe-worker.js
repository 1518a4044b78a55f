// A page that is opened from the disk may start no worker, and the theme's search is one. Here its script runs in a
// frame. It imports no further scripts: the theme has some for languages other than English only.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.document.createElement("script")
      this.loaded = new Promise((resolve) => (script.onload = resolve))
      script.src = url
      inside.document.body.append(script)
      this.inside = inside
    }

    async postMessage(data) {
      await this.loaded
      this.inside.dispatchEvent(new MessageEvent("message", { data }))
    }
  }
}
