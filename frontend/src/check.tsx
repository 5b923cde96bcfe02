/** A lot of photographs that are said to be right at once. */
import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "./api";
import { Desk } from "./desk";
import { Offer } from "./groups";
import { Act, Buttons, Keyed } from "./quick";
import { RightLine } from "./right";
import { numbers, t } from "./texts";

const PAGE = 30;
const LEAST = 8; // photographs between what is right and what is not, for which nobody searches
const MOST_SKIPPED = 960; // as many as an address may name
const HOUR_MS = 3_600_000;

/** The sure ones of a group, surest first, by pages: the first one with a wrong photograph is halved, and what lies before it approved. */
export function Approve({ desk }: { desk: Desk }) {
  const group = desk.byId.get(desk.group)!;
  const { sure } = desk.columns;
  const first = useRef<number[] | null>(null);
  const isThere = (row: number) => desk.isOpen(row) && desk.columns.group[row] === desk.group; // and no other window has moved it
  const rows = (first.current ??= Array.from(desk.columns.group.keys()).filter(isThere).sort((a, b) => sure[b] - sure[a] || a - b));
  const [{ from, to, pages, isBad }, setFound] = useState({ from: 0, to: rows.length, pages: 1, isBad: false });
  const seen = useRef<number[]>([]);
  const end = isBad ? from + Math.ceil((to - from) / 2) : Math.min(to, from + PAGE * pages);
  const page = rows.slice(Math.max(from, end - PAGE), end).filter(isThere);
  const isDone = from >= to || (isBad && to - from <= LEAST);

  useEffect(() => {
    if (!isDone) return;
    const approved = rows.slice(0, from).filter(isThere);
    if (!approved.length) return next();
    desk.pace.approved += approved.length;
    void desk.edit({ do: "confirm", images: approved, seen: seen.current.filter(isThere) }, "approved", { hourly: pace(desk), name: group.name }).then((done) => {
      if (done) return next();
      desk.pace.approved -= approved.length;
      desk.go("group", desk.group);
    });
  }, [isDone]);
  const next = () => {
    const listed = desk.groups;
    const later = listed.slice(listed.findIndex((each) => each.id === desk.group) + 1).find((each) => hasOpen(desk, each.id));
    if (later) desk.go("approve", later.id, {}, true); // Back would only lead here again
    else desk.go("groups", "", {}, true);
  };
  const answer = (found: { from: number; to: number; pages: number; isBad: boolean }) => {
    desk.pace.began ||= Date.now();
    setFound(found);
  };
  const right = () => {
    seen.current.push(...page);
    answer({ from: end, to, pages: pages * 2, isBad });
  };
  const wrong = () => answer({ from, to: end, pages, isBad: true });
  const stop = () => setFound({ from, to: from, pages, isBad });
  const acts: Act[] = [["Enter", t("allRight", { n: page.length }), right], ["x", t("someWrong"), wrong], ["s", t("enough"), stop]];
  if (isDone) return <p class="empty">{t("loading")}</p>;
  return (
    <Keyed desk={desk} acts={acts}>
      <div class="screen">
        <h2 dir="auto">{t("approveHow", { name: group.name })}</h2>
        <ul class="page" aria-label={t("photos", { n: page.length })}>
          {page.map((row) => <li key={row}><img src={desk.picture(row, 320)} alt={desk.name(row)} title={desk.name(row)} data-row={row} /></li>)}
        </ul>
        <p class="row foot">
          <Buttons acts={acts} />
          <small>{t("approvedSoFar", { n: from, of: rows.length })}</small>
        </p>
      </div>
    </Keyed>
  );
}

const hasOpen = (desk: Desk, id: number) => desk.columns.group.some((group, row) => group === id && desk.isOpen(row));

/** How many an hour a person has approved in this window. */
function pace(desk: Desk): string {
  const { approved, began } = desk.pace;
  const hours = (Date.now() - began) / HOUR_MS;
  return numbers.format(Math.round(approved / Math.max(hours, 1 / 3600)));
}

interface Screen {
  group: number; // that is proposed
  approved: number; // photographs that speak for it
  rows: number[];
  like: number[];
  offered: number[][]; // groups that a digit means, by row
}

/** Photographs that look like those of one group: Enter takes all of them, a digit says where those that are pointed at belong. */
export function Check({ desk }: { desk: Desk }) {
  const [screen, setScreen] = useState<Screen | null | undefined>(undefined);
  const [said, setSaid] = useState(new Map<number, number | null>());
  const [picked, setPicked] = useState<number[]>([]);
  const [at, setAt] = useState(0);
  const skipped = useRef<number[]>([]);
  const grid = useRef<HTMLUListElement>(null);
  const ask = () => {
    setScreen(undefined);
    void get<Screen | null>(`check?skip=${skipped.current.join()}`).then((found) => {
      setScreen(found);
      setSaid(new Map());
      setPicked([]);
      setAt(0);
    }, (error) => desk.fail(error));
  };
  useEffect(ask, []);
  const group = screen && desk.byId.get(screen.group);
  if (screen === undefined) return <p class="empty">{t("loading")}</p>;
  if (!screen || !group) return <p class="empty">{t("checkDone")} <RightLine desk={desk} /></p>;

  const rows = screen.rows.filter((row) => desk.isOpen(row)); // another window, or a new group, may have taken some
  const row = rows[Math.min(at, rows.length - 1)];
  const about = picked.length ? picked : row === undefined ? [] : [row];
  const offered = row === undefined ? [] : screen.offered[screen.rows.indexOf(about.at(-1)!)] ?? [];
  const say = (id: number | null) => {
    setSaid(new Map([...said, ...about.map((each) => [each, id] as const)]));
    setPicked([]);
  };
  const pick = (each: number, isRange = false) => {
    const [from, to] = [rows.indexOf(isRange && picked.length ? picked.at(-1)! : each), rows.indexOf(each)];
    const run = rows.slice(Math.min(from, to), Math.max(from, to) + 1);
    const isOff = run.length === 1 && picked.includes(each);
    setPicked(isOff ? picked.filter((other) => other !== each) : [...picked.filter((other) => !run.includes(other)), ...run]);
  };
  const take = async () => {
    if (!rows.length || (await desk.edit({ do: "sort", images: rows, to: rows.map((each) => (said.has(each) ? said.get(each)! : screen.group)) }, "sorted"))) ask();
  };
  const skip = () => {
    skipped.current = [...skipped.current, ...rows].slice(-MOST_SKIPPED);
    ask();
  };
  const columns = () => getComputedStyle(grid.current!).gridTemplateColumns.split(" ").length;
  const go = (step: number) => () => setAt(Math.min(rows.length - 1, Math.max(0, at + step)));
  const point = (key: string, event: KeyboardEvent) => {
    const target = offered[Number(key) - 1];
    if (target !== undefined) return () => say(target);
    const keys: Record<string, () => void> = { " ": () => row !== undefined && pick(row, event.shiftKey), ArrowLeft: go(-1), ArrowRight: go(1), ArrowUp: go(-1 * columns()), ArrowDown: go(columns()) };
    return keys[key];
  };
  const others = rows.filter((each) => said.has(each)).length;
  const acts: Act[] = [
    ["Enter", t(others ? "checkDoOthers" : "checkDo", { n: rows.length - others, name: group.name }), take],
    ["n", t("newGroup"), () => desk.gather(about).then(() => setPicked([]))],
    ["m", t("moveTo"), () => desk.open({ kind: "move", rows: about })],
    ["0", t("noGroup"), () => say(null)],
    ["s", t("skip"), skip],
  ];
  const where = (each: number) => (said.has(each) ? `→ ${desk.groupName(said.get(each)!)}` : desk.groupName(desk.columns.group[each]));
  return (
    <Keyed desk={desk} acts={acts} more={point}>
      <div class="screen">
        <h2 dir="auto">{t(screen.approved ? "checkHow" : "checkFirst", { name: group.name, n: screen.approved })}</h2>
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
            <Offer key={id} desk={desk} group={desk.byId.get(id)!} number={index + 1} onClick={() => say(id)} />
          ))}
        </p>
        <small class="hint">{t("checkKeys")}</small>
      </div>
    </Keyed>
  );
}
