/** Where the keyboard goes: arrows within what is one stop, F6 from area to area. */

/** What an arrow leads to among the stops of a list, as they lie on the screen. */
export function onArrow(event: KeyboardEvent & { currentTarget: HTMLElement }): void {
  const stops = [...event.currentTarget.querySelectorAll<HTMLElement>(".stop")];
  const at = stops.indexOf(event.target as HTMLElement);
  if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
  const { left, top } = stops[at].getBoundingClientRect();
  const isBelow = (each: HTMLElement) => {
    const place = each.getBoundingClientRect();
    return Math.abs(place.left - left) < 2 && Math.abs(place.top - top) > 2;
  };
  const ways: Record<string, () => HTMLElement | undefined> = {
    ArrowUp: () => stops.slice(0, at).reverse().find(isBelow),
    ArrowDown: () => stops.slice(at + 1).find(isBelow),
    ArrowLeft: () => stops[at - 1],
    ArrowRight: () => stops[at + 1],
    Home: () => stops[0],
    End: () => stops.at(-1),
  };
  if (!ways[event.key]) return;
  event.preventDefault();
  ways[event.key]()?.focus();
}

/** Goes to another area of the page: the next one, the one before, or the main one. */
export function goToArea(root: ShadowRoot, way: 1 | -1 | "main"): void {
  const areas = [...root.querySelectorAll<HTMLElement>("[data-area]")].filter((each) => each.checkVisibility());
  const at = areas.findIndex((each) => each.contains(root.activeElement));
  const to = way === "main" ? areas.find((each) => each.dataset.area === "main") : areas.at(at < 0 && way < 0 ? -1 : (at + way) % areas.length);
  if (!to) return;
  const stop = to.querySelector<HTMLElement>('[tabindex="0"]');
  (stop ?? (to.hasAttribute("tabindex") ? to : to.querySelector<HTMLElement>("button:enabled, a, select")))?.focus();
}

/** Gives something the focus after a key; after a click nothing has it, so that the next key is about nothing. */
export function arriveAt(element: HTMLElement | null | undefined): boolean {
  element?.focus({ preventScroll: true });
  if (element?.matches(":focus-visible")) return true;
  element?.blur();
  return false;
}
