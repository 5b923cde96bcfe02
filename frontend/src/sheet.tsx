/** What several sheets consist of: the sheet itself, an answer of the server, a photograph. */
import { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { address, get } from "./api";
import { Desk } from "./desk";
import { t } from "./texts";

/** What lies above the page, with `act`, its main button, beside the one that closes it; one without a title brings its own. */
export function Sheet({ desk, name, label, title = label, act, children }: { desk: Desk; name: string; label: string; title?: string; act?: ComponentChildren; children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const before = useRef(desk.messages).current;
  useLayoutEffect(() => {
    const element = dialog.current!;
    element.showModal();
    return () => element.close(); // which gives the focus back
  }, []);
  return (
    <dialog
      ref={dialog}
      class={name}
      aria-label={label}
      onCancel={(event) => (event.preventDefault(), desk.close())}
      onClick={(event) => event.target === dialog.current && desk.close()}
    >
      {title && <h2>{title}</h2>}
      {children}
      {title && <p class="row">{act}<button onClick={() => desk.close()}>{t("close")}</button></p>}
      <p class="status" role="status" aria-label={t("status")}>{desk.messages > before ? desk.status : ""}</p>
    </dialog>
  );
}

/** A photograph as large as it fits; first as it was in the grid, then sharp; nearer it is the file itself, where the browser shows it. */
export function Photo({ desk, row, isNear = false }: { desk: Desk; row: number; isNear?: boolean }) {
  const [sharp, setSharp] = useState(-1);
  useEffect(() => {
    let current = true;
    const image = new Image();
    image.src = desk.picture(row, 1600);
    void image.decode().then(() => current && setSharp(row), () => undefined);
    return () => void (current = false);
  }, [row]);
  const [hidden, setHidden] = useState(-1); // of which no browser shows the file
  const isFile = isNear && hidden !== row && desk.summary!.can_write;
  const src = isFile ? address(`original/${desk.summary!.generation}/${row}`) : desk.picture(row, sharp === row ? 1600 : 320);
  return <img class="photo" data-row={row} src={src} alt={desk.label(row)} onError={() => isFile && setHidden(row)} />;
}

/** What the server says at an address, asked anew in another state; the answer of another address is none. */
export function useAnswer<T>(path: string, revision = 0): T | null {
  const [found, setFound] = useState<{ path: string; answer: T } | null>(null);
  useEffect(() => {
    let current = true;
    void get<T>(path).then((answer) => current && setFound({ path, answer }), () => undefined); // what it is about has just gone
    return () => void (current = false);
  }, [path, revision]);
  return found?.path === path ? found.answer : null;
}
