/** The page's few icons, as strokes. */

import type { JSX } from "preact";

const PATHS = {
  menu: "M3 6h18M3 12h18M3 18h18",
  plus: "M12 5v14M5 12h14",
  send: "M12 20V5M5 12l7-7 7 7",
  stop: "M7 7h10v10H7z",
  gear: "M4 7h10M18 7h2M4 17h2M10 17h10M16 4.5v5M8 14.5v5",
  more: "M6 9l6 6 6-6",
  up: "M6 15l6-6 6 6",
  find: "M11 4a7 7 0 1 0 0 14a7 7 0 0 0 0-14M16 16l4.5 4.5",
  clip: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.5 3.5 0 0 1 5 5l-8.5 8.5a2 2 0 0 1-3-3L14 7",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  again: "M20 11a8 8 0 1 0-2 6M20 5v6h-6",
  bin: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  down: "M12 5v14M6 13l6 6 6-6",
  left: "M15 5l-7 7 7 7",
  right: "M9 5l7 7-7 7",
  close: "M6 6l12 12M18 6L6 18",
};

type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }): JSX.Element {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

interface ButtonProps {
  icon: IconName;
  label: string;
  onClick: () => void;
  /** It keeps the focus, and does nothing. */
  disabled?: boolean;
  /** Whether what it opens is open; `controls` is the id of that. */
  expanded?: boolean;
  controls?: string;
  class?: string;
  /** What is pressed for the same. */
  keys?: string;
}

/** A button with an icon, a label for screen readers, and the same text as its tooltip. */
export function IconButton({ icon, label, onClick, disabled, expanded, controls, class: name, keys }: ButtonProps): JSX.Element {
  return (
    <button
      type="button"
      class={`icon-button ${name ?? ""}`}
      aria-label={label}
      title={keys ? `${label} (${keys})` : label}
      onClick={disabled ? undefined : onClick}
      aria-disabled={disabled}
      aria-expanded={expanded}
      aria-controls={expanded ? controls : undefined}
    >
      <Icon name={icon} />
    </button>
  );
}
