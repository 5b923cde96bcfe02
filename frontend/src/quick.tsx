/** Photographs sorted by keyboard: one after another, or two side by side; what helps most comes first. */
import { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { get, Question } from "./api";
import { Desk } from "./desk";
import { Cover, Offer } from "./groups";
import { useWhy } from "./layers";
import { RightLine } from "./right";
import { Photo } from "./sheet";
import { t } from "./texts";

/** A key, a digit of any row or a letter of any case; what its button says; and what both do. */
export type Act = [key: string, text: string, act: () => unknown];

export const Buttons = ({ acts }: { acts: Act[] }) => (
  <>{acts.map(([key, text, act]) => <button key={key} class={key === "Enter" ? "primary" : ""} onClick={() => void act()}><kbd>{key.length > 1 ? key : key.toUpperCase()}</kbd> {text}</button>)}</>
);

interface KeyedProps {
  desk: Desk;
  acts: Act[];
  more?: (key: string, event: KeyboardEvent) => (() => void) | undefined; // what keys without a button do
  children: ComponentChildren;
}

/** Takes keys of its own as soon as it is there. */
export function Keyed({ desk, acts, more, children }: KeyedProps) {
  const onKeyDown = (event: KeyboardEvent) => {
    const key = /^(?:Digit|Numpad)(\d)$/.exec(event.code)?.[1] ?? (event.key.length > 1 ? event.key : event.key.toLowerCase());
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const done = acts.find(([each]) => each === key)?.[2] ?? more?.(key, event);
    if (!done) return;
    if (!event.repeat || key.startsWith("Arrow")) void done(); // a key that is held down answers once: what comes next was not seen
    event.preventDefault();
    event.stopPropagation();
  };
  const section = useRef<HTMLElement>(null);
  useEffect(() => void (desk.top || section.current!.focus()), [desk.top]); // not at every change: somebody may type a name to search
  return (
    <section class="quick" data-area="main" tabIndex={-1} ref={section} onKeyDown={onKeyDown}>
      {children}
    </section>
  );
}

function Where({ desk, row }: { desk: Desk; row: number }) {
  return (
    <>
      <span class="file" dir="auto">{desk.name(row)}</span> <span>{t("isNow", { name: desk.groupName(desk.columns.group[row]) })}</span>
    </>
  );
}

/** One photograph after another, least sure first and now and then one at random; a key says where it belongs. */
export function Quick({ desk }: { desk: Desk }) {
  const row = desk.sorting;
  const why = useWhy(desk, row ?? 0);
  if (row === null) return <p class="empty">{t("deskDone")} <RightLine desk={desk} /></p>;
  const offered = (why?.others ?? []).slice(0, 9).map(({ id }) => desk.byId.get(id));
  const acts: Act[] = [["n", t("newGroup"), () => desk.open({ kind: "new", rows: [row] })], ["0", t("noGroup"), () => desk.move([row], null)], ["s", t("skip"), () => (desk.sortNext(), desk.changed())]];
  const choose = (key: string) => {
    const target = offered[key === "Enter" ? 0 : Number(key) - 1];
    return target && (() => void desk.move([row], target.id));
  };
  return (
    <Keyed desk={desk} acts={acts} more={choose}>
      <div class="stage">
        <Photo desk={desk} row={row} />
        <div class="caption">
          <Where desk={desk} row={row} />
          {desk.isBlind && <b class="drawn">{t("drawn")}</b>}
          <RightLine desk={desk} />
        </div>
      </div>
      <div class="answers">
        {offered.map((group, index) => group && (
          <Offer key={group.id} desk={desk} group={group} most={3} number={index + 1} class={`offer${group.id === desk.columns.group[row] ? " here" : ""}`} onClick={() => void desk.move([row], group.id)} />
        ))}
        <p class="row">
          <Buttons acts={acts} />
          <button onClick={() => desk.go("same")}>{t("sameOrDifferent")}</button>
        </p>
        <small class="hint">{t("deskKeys")}</small>
      </div>
    </Keyed>
  );
}

/** Two photographs side by side: the same, or different? */
export function Same({ desk }: { desk: Desk }) {
  const [left, setLeft] = useState<Question[] | null>(null);
  const seen = useRef<string[]>([]);
  const busy = useRef(false);
  const ask = () => get<Question[]>(`questions?skip=${seen.current.slice(-500).join()}`).then(setLeft, (error) => desk.fail(error));
  const question = left?.[0];
  const group = question && desk.byId.get(question.group);
  const isOpen = question && group && desk.columns.group[question.second] === question.group;
  useEffect(() => void ask(), []);

  const next = async (same?: boolean) => {
    if (!question || busy.current) return;
    busy.current = true;
    const done = same === undefined || (await desk.edit({ do: "answer", first: question.first, second: question.second, same }, same ? "answeredSame" : "answeredDifferent", { name: group!.name }));
    seen.current.push(`${question.first}-${question.second}`);
    if (!done || left.length === 1) await ask();
    else setLeft(left.slice(1));
    busy.current = false;
  };
  const acts: Act[] = [["y", t("same"), () => next(true)], ["x", t("different"), () => next(false)], ["s", t("skip"), () => next()]];
  if (!left) return <p class="empty">{t("loading")}</p>;
  if (question && !isOpen) // another window was quicker: the next one is asked for, so that no key is about what was not seen
    return <p class="empty">{t("sameElsewhere")} <button autofocus onClick={() => void ask()}>{t("goOn")}</button></p>;
  if (!question || !group) return <p class="empty">{t("sameDone")} <button onClick={() => desk.go("desk")}>{t("oneByOne")}</button></p>;
  return (
    <Keyed desk={desk} acts={acts}>
      <div class="stage pair">
        <Photo desk={desk} row={question.first} />
        <Photo desk={desk} row={question.second} />
        <div class="caption"><Where desk={desk} row={question.first} /></div>
        <div class="caption"><span class="file" dir="auto">{desk.name(question.second)}</span></div>
      </div>
      <div class="answers">
        <p><b>{t("sameHow", { name: group.name })}</b></p>
        <Cover desk={desk} group={group} most={3} />
        <p class="row"><Buttons acts={acts} /></p>
        <p class="row"><button onClick={() => desk.go("desk")}>{t("oneByOne")}</button></p>
      </div>
    </Keyed>
  );
}
