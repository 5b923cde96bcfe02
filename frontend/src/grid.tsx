/** Photographs as a grid that scrolls: only those that can be seen are there. */
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { REVIEWED } from "./api";
import { arriveAt } from "./areas";
import { Desk } from "./desk";
import { t } from "./texts";

const GAP = 4;
const SMALL = 128;
const SHARP = 320;
const SETTLED_MS = 120;
const HELD_MS = 450;

export function Grid({ desk }: { desk: Desk }) {
  const box = useRef<HTMLDivElement>(null);
  const inner = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, width: 0, height: 0 });
  const [sharp, setSharp] = useState(false);
  const key = `${desk.place} ${desk.group} ${desk.order}`;

  const look = () => {
    const element = box.current!;
    setView({ top: element.scrollTop, width: inner.current!.clientWidth, height: element.clientHeight });
  };
  useLayoutEffect(() => {
    const element = box.current!;
    const watcher = new ResizeObserver(look);
    watcher.observe(element);
    look();
    return () => watcher.disconnect();
  }, []);
  useLayoutEffect(() => box.current!.scrollTo(0, 0), [key]);
  useEffect(() => {
    const timer = setTimeout(() => setSharp(true), SETTLED_MS);
    return () => clearTimeout(timer);
  }, [view.top]);

  const n = desk.shown.length;
  const columns = Math.max(view.width < 500 ? 3 : 1, Math.floor((view.width + GAP) / (desk.side + GAP)));
  const cell = (view.width - GAP * (columns - 1)) / columns;
  const pitch = cell + GAP;
  const first = Math.max(0, Math.floor(view.top / pitch) - 1) * columns;
  const last = Math.min(n, (Math.ceil((view.top + view.height) / pitch) + 1) * columns);
  useEffect(() => {
    const live = desk.shown.slice(first, last);
    desk.pictures.want(live, SMALL);
    desk.pictures.want(sharp && cell * devicePixelRatio > SMALL ? live : [], SHARP);
  });

  const reveal = () => {
    const element = box.current!;
    const top = Math.floor(desk.focus / columns) * pitch;
    if (top < element.scrollTop) element.scrollTop = top;
    if (top + pitch > element.scrollTop + element.clientHeight) element.scrollTop = top + pitch - element.clientHeight;
  };
  const cellOfFocus = () => box.current?.querySelector<HTMLElement>(`[data-row="${desk.shown[desk.focus]}"]`);
  const focusCell = () => cellOfFocus()?.focus();
  /** Moves the focus, and the view with it where it would leave it. */
  const focus = (index: number) => {
    desk.focus = Math.min(n - 1, Math.max(0, index));
    reveal();
    look();
    desk.changed();
    requestAnimationFrame(focusCell);
  };
  const held = useRef(false); // whether the focus is on a photograph, even if that has just left
  const focusOf = () => (box.current!.getRootNode() as ShadowRoot).activeElement;
  useEffect(() => {
    if (desk.top || (n > 0 && !cells.length)) return; // until it is measured
    const wanted = desk.refocus;
    desk.refocus = null; // once: what cannot be focused now is not tried for ever
    if (wanted === "cell" || wanted === "first") {
      reveal();
      look();
      requestAnimationFrame(() => (wanted === "cell" ? focusCell() : arriveAt(cellOfFocus()) || inner.current?.focus({ preventScroll: true })));
    } else if ((wanted === "list" || held.current) && !focusOf()) inner.current!.focus({ preventScroll: true }); // no photograph: a key is about none
  });
  const onKeyDown = (event: KeyboardEvent) => {
    const page = Math.max(1, Math.floor(view.height / pitch)) * columns;
    const steps: Record<string, number> = {
      ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, PageUp: -page, PageDown: page, Home: -n, End: n,
    }; // prettier-ignore
    const step = steps[event.key];
    const row = (focusOf() as HTMLElement | null)?.dataset.row; // of nothing where the list itself has the focus
    if (step !== undefined && !event.ctrlKey && !event.metaKey && !event.altKey) {
      if (event.shiftKey && !desk.selected.size) desk.anchor = desk.focus;
      const isSeen = desk.focus >= first && desk.focus < last;
      focus(row !== undefined || Math.abs(step) === n ? desk.focus + step : isSeen ? desk.focus : Math.ceil(view.top / pitch) * columns);
      if (event.shiftKey) desk.select(desk.shown[desk.focus], true);
    } else if (row === undefined) return;
    else if (event.key === " ") desk.select(Number(row), event.shiftKey);
    else if (event.key === "Enter") desk.open({ kind: "large", row: Number(row), why: false });
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const cells = [];
  for (let index = first; index < last && cell > 0; index++) {
    const left = (index % columns) * pitch;
    const top = Math.floor(index / columns) * pitch;
    cells.push(<Cell key={desk.shown[index]} desk={desk} index={index} left={left} top={top} cell={cell} />);
  }
  return (
    <div class="scroll" ref={box} onScroll={() => (setSharp(false), look())}>
      {n === 0 && <p class="empty">{t(desk.place === "found" ? "notFound" : "empty")}</p>}
      <div
        class="cells"
        data-area="main"
        ref={inner}
        role="listbox"
        aria-multiselectable="true"
        aria-label={t("photos", { n })}
        tabIndex={-1}
        style={{ height: `${Math.ceil(n / columns) * pitch}px` }}
        onKeyDown={onKeyDown}
        onFocusIn={() => (held.current = true)}
        onFocusOut={(event) => (held.current = !event.relatedTarget)}
      >
        {cells}
      </div>
    </div>
  );
}

interface CellProps { desk: Desk; index: number; left: number; top: number; cell: number }

function Cell({ desk, index, left, top, cell }: CellProps) {
  const row = desk.shown[index];
  const picked = desk.selected.has(row);
  const touch = useRef({ timer: 0, isHeld: false });
  const onClick = (event: MouseEvent) => {
    if (touch.current.isHeld) return void (touch.current.isHeld = false); // the finger that selected it leaves
    desk.focus = desk.shown.indexOf(row);
    if (event.shiftKey) desk.select(row, true);
    else if (event.ctrlKey || event.metaKey || desk.selected.size || (event.target as Element).closest(".box")) desk.select(row);
    else desk.open({ kind: "large", row, why: false });
  };
  const onTouchStart = () => {
    const hold = () => ((touch.current.isHeld = true), desk.select(row));
    touch.current = { timer: window.setTimeout(hold, HELD_MS), isHeld: false };
  };
  const letGo = () => clearTimeout(touch.current.timer);
  const onDragStart = (event: DragEvent) => {
    if (!picked) desk.selected = new Set([row]);
    event.dataTransfer!.setData("application/x-promptccd", "photos");
    event.dataTransfer!.effectAllowed = "move";
    desk.changed();
  };
  return (
    <div
      class={`cell${picked ? " picked" : ""}${desk.isGone(row) ? " gone" : ""}${desk.isAway(row) ? " away" : ""}`}
      role="option"
      aria-selected={picked}
      aria-setsize={desk.shown.length}
      aria-posinset={index + 1}
      aria-label={desk.label(row)}
      title={desk.label(row)}
      tabIndex={index === desk.focus ? 0 : -1}
      data-row={row}
      draggable
      style={{ left: `${left}px`, top: `${top}px`, width: `${cell}px`, height: `${cell}px` }}
      onClick={onClick}
      onDragStart={onDragStart}
      onTouchStart={onTouchStart}
      onTouchEnd={letGo}
      onTouchMove={letGo}
      onTouchCancel={letGo}
      onContextMenu={(event) => touch.current.isHeld && event.preventDefault()}
    >
      <img src={desk.pictures.url(row, SHARP) ?? desk.pictures.url(row, SMALL)} alt="" decoding="async" draggable={false} />
      <span class="box" aria-hidden="true" />
      {Boolean(desk.columns.flags[row] & REVIEWED) && <span class="dot" aria-hidden="true" />}
      {desk.isUnsure(row) && <span class="query" aria-hidden="true">?</span>}
    </div>
  );
}
