/** Photographs that look like those of one group, many at once. */
import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "./api";
import { Desk } from "./desk";
import { Offer } from "./groups";
import { Act, Buttons, Keyed } from "./quick";
import { RightLine } from "./right";
import { t } from "./texts";

const MOST_SKIPPED = 960; // as many as an address may name

/** Shows the next part of a list that is longer than the screen; whether there was one. */
function scrolled(list: HTMLElement): boolean {
  const screen = list.closest(".screen")!;
  const below = list.getBoundingClientRect().bottom - screen.querySelector(".foot")!.getBoundingClientRect().top;
  if (below < 8) return false;
  screen.scrollTop += Math.min(below + 8, screen.clientHeight * 0.7);
  return true;
}

interface Screen {
  group: number; // that is proposed
  likely: boolean; // whether most are right there
  reviewed: number; // photographs that speak for it
  rows: number[];
  like: number[];
  offered: number[][]; // groups that a digit means, by row
}

/** Photographs that look like those of one group: a digit moves those that are pointed at where they belong, Enter puts all others into the group. */
export function Check({ desk }: { desk: Desk }) {
  const [screen, setScreen] = useState<Screen | null | undefined>(undefined);
  const [picked, setPicked] = useState<number[]>([]);
  const [at, setAt] = useState(0);
  const skipped = useRef<number[]>([]);
  const grid = useRef<HTMLUListElement>(null);
  const ask = () => {
    setScreen(undefined);
    void get<Screen | null>(`check?skip=${skipped.current.join()}`).then((found) => {
      setScreen(found);
      setPicked([]);
      setAt(0);
    }, (error) => desk.fail(error));
  };
  useEffect(ask, []);
  const group = screen && desk.byId.get(screen.group);
  if (screen === undefined) return <p class="empty">{t("loading")}</p>;
  if (!screen || !group) return <p class="empty">{t("checkDone")} <RightLine desk={desk} /></p>;

  const { rows } = screen;
  const row = rows[at];
  const open = rows.filter((each) => desk.isOpen(each)); // nobody has said where they belong
  const about = picked.length ? picked : row === undefined ? [] : [row];
  const offered = row === undefined ? [] : screen.offered[screen.rows.indexOf(about.at(-1)!)] ?? [];
  const say = (id: number | null) => desk.move(about, id).then(() => setPicked([]));
  const pick = (each: number, isRange = false) => {
    const [from, to] = [rows.indexOf(isRange && picked.length ? picked.at(-1)! : each), rows.indexOf(each)];
    const run = rows.slice(Math.min(from, to), Math.max(from, to) + 1);
    const isOff = run.length === 1 && picked.includes(each);
    setPicked(isOff ? picked.filter((other) => other !== each) : [...picked.filter((other) => !run.includes(other)), ...run]);
  };
  const isAll = screen.likely && open.length > 0; // where most belong elsewhere, none is put there unseen
  const take = async () => {
    if (scrolled(grid.current!)) return;
    if (!open.length || (await desk.edit({ do: "sort", images: open, to: open.map(() => screen.group) }, "sorted"))) ask();
  };
  const skip = () => {
    skipped.current = [...skipped.current, ...open].slice(-MOST_SKIPPED);
    ask();
  };
  const columns = () => getComputedStyle(grid.current!).gridTemplateColumns.split(" ").length;
  const go = (step: number) => () => setAt(Math.min(rows.length - 1, Math.max(0, at + step)));
  const point = (key: string, event: KeyboardEvent) => {
    const target = offered[Number(key) - 1];
    if (target !== undefined) return () => void say(target);
    const keys: Record<string, () => void> = { " ": () => row !== undefined && pick(row, event.shiftKey), ArrowLeft: go(-1), ArrowRight: go(1), ArrowUp: go(-1 * columns()), ArrowDown: go(columns()) };
    return keys[key];
  };
  const all: [string, () => unknown] = [t("checkDo", { n: open.length, name: group.name }), take];
  const none: [string, () => unknown] = [t(screen.likely ? "skip" : "goOn"), skip];
  const acts: Act[] = [
    ["Enter", ...(isAll ? all : none)],
    ["n", t("newGroup"), () => desk.open({ kind: "new", rows: about })],
    ["m", t("moveTo"), () => desk.open({ kind: "move", rows: about })],
    ["0", t("noGroup"), () => say(null)],
    ...(isAll ? [["s", ...none] as Act] : []),
  ];
  const where = (each: number) => `${desk.isOpen(each) ? "" : "→ "}${desk.groupName(desk.columns.group[each])}`;
  return (
    <Keyed desk={desk} acts={acts} more={point}>
      <div class="screen">
        <h2 dir="auto">{t(!screen.likely ? "checkOdd" : screen.reviewed ? "checkHow" : "checkFirst", { name: group.name, n: screen.reviewed })}</h2>
        <p><RightLine desk={desk} /></p>
        <ul class="page" ref={grid} aria-label={t("photos", { n: rows.length })}>
          {rows.map((each, index) => (
            <li key={each} class={`${each === row ? "here" : ""}${picked.includes(each) ? " picked" : ""}`} onMouseEnter={() => setAt(index)} onClick={(event) => pick(each, event.shiftKey)}>
              <img src={desk.picture(each, 320)} alt={`${desk.name(each)}, ${where(each)}`} title={desk.name(each)} data-row={each} />
              <small dir="auto">{where(each)}</small>
            </li>
          ))}
        </ul>
        <p class="row foot">
          <Buttons acts={acts} />
        </p>
        <p class="row offered">
          {offered.map((id, index) => desk.byId.get(id) && (
            <Offer key={id} desk={desk} group={desk.byId.get(id)!} number={index + 1} onClick={() => void say(id)} />
          ))}
        </p>
        <small class="hint">{t("checkKeys")}</small>
      </div>
    </Keyed>
  );
}
