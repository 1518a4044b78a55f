// In tests of views it stands for uPlot, which paints on a canvas and needs a layout: both are Chromium's. It keeps what
// it is given.
type Scale = { max: number; min: number };
type Hooks = Record<"draw" | "ready" | "setCursor" | "setScale", ((plot: Plot, axis: string) => void)[]>;

export default class Plot {
  /** Those that are shown, in the order in which they were made. */
  static shown: Plot[] = [];
  static fmtDate = () => (date: Date) => date.toISOString();
  static paths = {};
  static tzDate = (date: Date) => date;

  bbox = { height: 10, left: 0, top: 0, width: 100 };
  cursor: { idx: number | null; left: number } = { idx: null, left: -10 };
  /** Where it was hatched from. */
  hatchedFrom: number | undefined;
  over = document.createElement("div");
  scales = { x: { max: 0, min: 0 } };
  ctx = {
    ...Object.fromEntries(
      ["beginPath", "clip", "lineTo", "moveTo", "restore", "save", "stroke"].map((name) => [
        name,
        () => undefined,
      ]),
    ),
    rect: (left: number) => {
      this.hatchedFrom = left;
    },
  };

  constructor(
    private readonly options: { hooks: Hooks },
    public data: (number | null)[][],
    element: HTMLElement,
  ) {
    element.append(this.over);
    Plot.shown.push(this);
    this.call("ready");
    this.setData(data);
  }

  private call(name: keyof Hooks, axis = ""): void {
    this.options.hooks[name].forEach((hook) => hook(this, axis));
  }

  /** The mouse is on a step, 100 pixels from the left. */
  point(idx: number): void {
    this.cursor = { idx, left: 100 };
    this.call("setCursor");
  }

  destroy(): void {
    Plot.shown = Plot.shown.filter((one) => one !== this);
  }

  setData(data: (number | null)[][], resets = true): void {
    this.data = data;
    this.hatchedFrom = undefined;
    if (resets) this.setScale("x", { max: data[0]?.at(-1) ?? 0, min: data[0]?.[0] ?? 0 });
    this.call("draw");
  }

  setScale(axis: "x", scale: Scale): void {
    this.scales[axis] = scale;
    this.call("setScale", axis);
  }

  setSize(): void {
    // Nothing is painted.
  }

  valToPos = (value: number) => value;
}
