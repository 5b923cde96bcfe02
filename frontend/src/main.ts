/** `<promptccd-desk>`: the page as one element, whose look and insides nothing around it touches. */
import { h, render } from "preact";
import { setBase } from "./api";
import { App, onKey } from "./app";
import look from "./desk.css";
import { Desk } from "./desk";

/** Colours that the map asks for: those of the light or of the dark, and no rule that says which. */
for (const name of ["--back", "--text", "--accent"]) CSS.registerProperty({ name, syntax: "<color>", inherits: true, initialValue: "gray" });

/** With an attribute `base`, the address of its project, it stands within a page of somebody else; `view` is where it begins. */
class DeskElement extends HTMLElement {
  static observedAttributes = ["base", "data-stage", "view"];
  private root = this.attachShadow({ mode: "open" });
  private leaving = new AbortController();
  private desk: Desk | null = null;

  connectedCallback(): void {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(look);
    this.root.adoptedStyleSheets = [sheet];
    const base = this.getAttribute("base");
    setBase(base ?? "");
    if (this.hasAttribute("view")) location.hash = `view=${this.getAttribute("view")}`;
    this.leaving = new AbortController();
    document.addEventListener("keydown", (event) => this.concerns(event, base !== null) && onKey(this.desk!, event, this.root), this.leaving);
    for (const kind of ["dragover", "drop"] as const) this.addEventListener(kind, (event) => event.dataTransfer!.types.includes("Files") && event.preventDefault(), this.leaving); // the browser would leave the page for a file
    this.begin(base !== null);
  }

  disconnectedCallback(): void {
    this.leaving.abort();
    this.desk?.leave();
  }

  /** The page around it has put something else into its place. */
  attributeChangedCallback(): void {
    if (!this.desk) return;
    this.disconnectedCallback();
    this.connectedCallback();
  }

  private begin(isInside: boolean): void {
    let waiting = false;
    const desk = new Desk(isInside, () => (isInside ? this.begin(true) : location.reload()), () => {
      if (waiting) return;
      waiting = true;
      queueMicrotask(() => {
        waiting = false;
        if (this.desk === desk) render(h(App, { desk }), this.root);
      });
    }, () => {
      const row = (this.root.activeElement as HTMLElement | null)?.dataset.row;
      return row === undefined ? undefined : Number(row);
    });
    this.desk?.leave();
    this.desk = desk;
    desk.changed();
    const name = () => void (isInside || (document.title = desk.summary!.title));
    desk.start().then(name, (error: unknown) => desk.lose(error));
  }

  /** Within another page only keys that nothing else there has. */
  private concerns(event: Event, isInside: boolean): boolean {
    const isOurs = event.composedPath().includes(this) || event.target === document.body;
    return !isInside || (isOurs && this.checkVisibility());
  }
}

customElements.define("promptccd-desk", DeskElement);
