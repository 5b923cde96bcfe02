/** How much is right. */
import { useEffect } from "preact/hooks";
import { Desk } from "./desk";
import { percent, t } from "./texts";

/** What those that were drawn blind say of all, or of the group that is drawn from; asked anew after every correction. */
export function RightLine({ desk }: { desk: Desk }) {
  useEffect(() => void desk.loadRight().catch((error) => desk.fail(error)), [desk.summary!.revision, desk.place, desk.within]);
  const { right } = desk;
  if (!right || (!right.looked && desk.within === null)) return null;
  const { share, low, high, drawn, wrong, looked } = right;
  const name = desk.within === null ? "" : desk.groupName(desk.within);
  const text = share === null || low === null || high === null ? t(name ? "rightUnknownOf" : "rightUnknown", { n: looked, name })
    : t(name ? "rightOf" : "right", { n: looked, name, drawn, wrong, share: percent(share), low: percent(low), high: percent(high) }); // prettier-ignore
  return <small class="right" dir="auto">{text}</small>;
}
