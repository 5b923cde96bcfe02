/** Grow from these: photographs like some examples and unlike others, down to a likeness that is chosen by eye. */
import { useState } from "preact/hooks";
import { Desk } from "./desk";
import { t } from "./texts";

const STEP = 0.01;

/** What stands above the photographs that are like some: from how much likeness on they are selected, where, and what else is said. */
export function Grow({ desk }: { desk: Desk }) {
  const asked = new URLSearchParams(location.hash.slice(1));
  const [least, setLeast] = useState(1);
  const examples = asked.get("of") ?? "";
  const home = asked.get("in") ?? "";
  const group = desk.columns.group[Number(examples.split(",")[0])];
  const again = (change: Record<string, string>) => {
    const { of, ...rest } = { of: examples, in: home, not: asked.get("not") ?? "", ...change };
    desk.go("alike", of, Object.fromEntries(Object.entries(rest).filter(([, value]) => value)));
  };
  const more = (rows: string) => [...new Set([...rows.split(","), ...[...desk.selected].map(String)])].filter(Boolean).join();
  const choose = (value: number) => {
    setLeast(value);
    desk.selected = new Set(desk.shown.filter((row) => (desk.likes.get(row) ?? 0) >= value));
    desk.changed();
  };
  return (
    <div class="row grow">
      <label class="choice">
        <span>{t("growFrom", { like: least.toFixed(2), n: desk.selected.size })}</span>
        <input type="range" min="0" max="1" step={STEP} value={least} aria-label={t("growLeast")} onInput={(event) => choose(Number(event.currentTarget.value))} />
      </label>
      {group >= 0 && (
        <label class="choice">
          <input type="checkbox" checked={Boolean(home)} onChange={() => again({ in: home ? "" : String(group) })} /> {t("growIn", { name: desk.groupName(Number(home || group)) })}
        </label>
      )}
      <button disabled={!desk.selected.size} onClick={() => again({ of: more(examples) })}>{t("growToo")}</button>
      <button disabled={!desk.selected.size} onClick={() => again({ not: more(asked.get("not") ?? "") })}>{t("growNot")}</button>
    </div>
  );
}
