/** `<promptccd-desk>`: the page as one element, whose look and insides nothing around it touches. */
import { h, render } from "preact";
import { App, onKey } from "./app";
import look from "./desk.css";
import { Desk } from "./desk";

class DeskElement extends HTMLElement {
  connectedCallback(): void {
    const root = this.attachShadow({ mode: "open" });
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(look);
    root.adoptedStyleSheets = [sheet];
    let waiting = false;
    const desk = new Desk(() => {
      if (waiting) return;
      waiting = true;
      queueMicrotask(() => {
        waiting = false;
        render(h(App, { desk }), root);
      });
    });
    desk.changed();
    document.addEventListener("keydown", (event) => onKey(desk, event, root));
    desk.start().then(
      () => (document.title = desk.summary!.title),
      () => {
        desk.lost = true;
        desk.changed();
      },
    );
  }
}

customElements.define("promptccd-desk", DeskElement);
