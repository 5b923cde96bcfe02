/** A lot of photographs that are said to be right at once. */
import { useEffect, useRef, useState } from "preact/hooks";
import { Desk } from "./desk";
import { Keyed } from "./quick";
import { numbers, t } from "./texts";

const PAGE = 30;
const LEAST = 8; // photographs between what is right and what is not, for which nobody searches
const HOUR_MS = 3_600_000;

/** The sure ones of a group, surest first, by pages: the first one with a wrong photograph is halved, and what lies before it approved. */
export function Approve({ desk }: { desk: Desk }) {
  const group = desk.byId.get(desk.group)!;
  const { sure } = desk.columns;
  const rows = useRef(desk.columns.group.length ? ofGroup() : []).current;
  const [{ from, to, pages, isBad }, setFound] = useState({ from: 0, to: rows.length, pages: 1, isBad: false });
  const seen = useRef<number[]>([]);
  const end = isBad ? from + Math.ceil((to - from) / 2) : Math.min(to, from + PAGE * pages);
  const page = rows.slice(Math.max(from, end - PAGE), end);
  const isDone = from >= to || (isBad && to - from <= LEAST);

  function ofGroup(): number[] {
    const all = Array.from(desk.columns.group.keys()).filter((row) => desk.isOpen(row) && desk.columns.group[row] === desk.group);
    return all.sort((a, b) => sure[b] - sure[a] || a - b);
  }
  useEffect(() => {
    if (!isDone) return;
    if (!from) return next();
    desk.pace.approved += from;
    void desk.approve(rows.slice(0, from), seen.current, pace(desk)).then((done) => {
      if (done) next();
      else desk.pace.approved -= from;
    });
  }, [isDone]);
  const next = () => {
    const listed = desk.groups;
    const later = listed.slice(listed.findIndex((each) => each.id === desk.group) + 1).find((each) => hasOpen(desk, each.id));
    if (later) desk.go("approve", later.id);
    else desk.go("groups");
  };
  const right = () => {
    desk.pace.began ||= Date.now();
    seen.current.push(...page);
    setFound({ from: end, to, pages: pages * 2, isBad });
  };
  const wrong = () => {
    desk.pace.began ||= Date.now();
    setFound({ from, to: end, pages, isBad: true });
  };
  const stop = () => setFound({ from, to: from, pages, isBad });
  const keys: Record<string, () => void> = { Enter: right, x: wrong, s: stop };
  if (isDone) return <p class="empty">{t("loading")}</p>;
  return (
    <Keyed desk={desk} act={(event) => keys[event.key.length > 1 ? event.key : event.key.toLowerCase()]}>
      <div class="screen">
        <h2 dir="auto">{t("approveHow", { name: group.name })}</h2>
        <ul class="page" aria-label={t("photos", { n: page.length })}>
          {page.map((row) => (
            <li key={row}><img src={desk.picture(row, 320)} alt={desk.name(row)} title={desk.name(row)} data-row={row} /></li>
          ))}
        </ul>
        <p class="row">
          <button class="primary" onClick={right}><kbd>↵</kbd> {t("allRight", { n: page.length })}</button>
          <button onClick={wrong}><kbd>X</kbd> {t("someWrong")}</button>
          <button onClick={stop}><kbd>S</kbd> {t("enough")}</button>
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
