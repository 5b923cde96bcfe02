/** How much is right. */
import { useEffect } from "preact/hooks";
import { Desk } from "./desk";
import { percent, t } from "./texts";

/** What those that were drawn blind say of all; asked anew after every correction. */
export function RightLine({ desk }: { desk: Desk }) {
  useEffect(() => void desk.loadRight().catch((error) => desk.fail(error)), [desk.summary!.revision, desk.place]);
  const { right } = desk;
  if (!right?.looked) return null;
  const { share, low, high, drawn, wrong, looked } = right;
  const text = share === null || low === null || high === null ? t("rightUnknown", { n: looked })
    : t("right", { n: looked, drawn, wrong, share: percent(share), low: percent(low), high: percent(high) }); // prettier-ignore
  return <small class="right">{text}</small>;
}
