/** The header's choice of the model. */

import type { JSX } from "preact";
import { useRef } from "preact/hooks";
import { focusComposer } from "./composer";
import { Icon } from "./icons";
import { MODIFIER } from "./keys";
import { chooseModel, model, models } from "./store";
import { grouped } from "./words";

export const PICKER = "models";

export function Picker(): JSX.Element {
  const button = useRef<HTMLButtonElement>(null);
  const list = useRef<HTMLDivElement>(null);
  const chosen = model.value;
  return (
    <>
      <button
        ref={button}
        type="button"
        class="picker"
        aria-label={`Model: ${chosen?.name ?? "none"}`}
        title={`Model (${MODIFIER}+M)`}
        popovertarget={PICKER}
        disabled={chosen === null}
      >
        <span>{chosen?.name ?? "edgedecode"}</span>
        <Icon name="more" />
      </button>
      <div
        id={PICKER}
        ref={list}
        popover="auto"
        class="models"
        role="group"
        aria-label="Models"
        onBeforeToggle={() => {
          const place = button.current?.getBoundingClientRect();
          if (place && list.current) list.current.style.left = `${place.left}px`;
        }}
      >
        {models.value.map((each) => (
          <button
            key={each.name}
            type="button"
            aria-pressed={each === chosen}
            onClick={() => {
              chooseModel(each.name);
              list.current?.hidePopover();
              focusComposer();
            }}
          >
            <span>{each.name}</span>
            <small>{grouped(each.context)} tokens of context</small>
          </button>
        ))}
        {models.value.length === 1 && <p class="faint">The server was started with this model alone.</p>}
      </div>
    </>
  );
}
