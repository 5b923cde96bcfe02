/** Two photographs side by side: the same, or different? What helps most is asked first. */
import { useEffect, useRef, useState } from "preact/hooks";
import { getQuestions, Question } from "./api";
import { Desk } from "./desk";
import { Cover } from "./groups";
import { Photo } from "./layers";
import { t } from "./texts";

export function Same({ desk }: { desk: Desk }) {
  const [left, setLeft] = useState<Question[] | null>(null);
  const seen = useRef<string[]>([]);
  const busy = useRef(false);
  const ask = () => getQuestions(seen.current).then(setLeft, (error) => desk.fail(error));
  const question = left?.[0];
  const group = question && desk.byId.get(question.group);
  const isOpen = question && group && desk.columns.group[question.second] === question.group;
  useEffect(() => {
    if (!left || (question && !isOpen)) void ask(); // at the beginning, and where something else was corrected meanwhile
  }, [desk.summary!.revision]);

  const next = async (same?: boolean) => {
    if (!question || busy.current) return;
    busy.current = true;
    const done = same === undefined || (await desk.answer(question, same));
    seen.current.push(`${question.first}-${question.second}`);
    if (!done || left.length === 1) await ask();
    else setLeft(left.slice(1));
    busy.current = false;
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const keys: Record<string, () => Promise<void>> = { y: () => next(true), x: () => next(false), s: () => next() };
    const act = event.ctrlKey || event.metaKey || event.altKey ? undefined : keys[event.key.toLowerCase()];
    if (!act) return;
    void act();
    event.preventDefault();
    event.stopPropagation();
  };
  if (!left) return <p class="empty">{t("loading")}</p>;
  if (!question || !group || !isOpen) return <p class="empty">{t("sameDone")} <button onClick={() => desk.go("desk")}>{t("oneByOne")}</button></p>;
  return (
    <section class="quick" tabIndex={-1} ref={(element) => { if (!desk.layers.length) element?.focus(); }} onKeyDown={onKeyDown}>
      <div class="stage pair">
        <Photo desk={desk} row={question.first} />
        <Photo desk={desk} row={question.second} />
        <div class="caption">
          <span class="file" dir="auto">{desk.name(question.first)}</span> <span>{t("isNow", { name: desk.groupName(desk.columns.group[question.first]) })}</span>
        </div>
        <div class="caption"><span class="file" dir="auto">{desk.name(question.second)}</span></div>
      </div>
      <div class="answers">
        <p><b>{t("sameHow", { name: group.name })}</b></p>
        <Cover desk={desk} group={group} most={3} />
        <p class="row">
          <button onClick={() => void next(true)}><kbd>Y</kbd> {t("same")}</button>
          <button onClick={() => void next(false)}><kbd>X</kbd> {t("different")}</button>
          <button onClick={() => void next()}><kbd>S</kbd> {t("skip")}</button>
        </p>
        <p class="row"><button onClick={() => desk.go("desk")}>{t("oneByOne")}</button></p>
        <small>{t("sameKeys")}</small>
      </div>
    </section>
  );
}
