/** Every word of the page is in one file for each language; this finds it and fills it in. */
import english from "./texts.en.json";

type Text = string | { one: string; other: string };
type Values = Record<string, string | number>;
export type Words = keyof typeof english;

const texts: Record<Words, Text> = english;
const plurals = new Intl.PluralRules("en");
export const numbers = new Intl.NumberFormat("en");
const percents = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 0 });

export const percent = (share: number): string => percents.format(share);

/** The text of that name; `n` chooses between one and several, `{name}` is filled in. */
export function t(name: Words, values: Values = {}): string {
  const found = texts[name];
  const text = typeof found === "string" ? found : found[plurals.select(Number(values.n)) === "one" ? "one" : "other"];
  return text.replace(/\{(\w+)\}/g, (_, key: string) => {
    const value = values[key];
    return typeof value === "number" ? numbers.format(value) : (value ?? "");
  });
}
