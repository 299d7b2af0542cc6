import { useEffect, useState } from "react";

/** Shows the equivalent CLI command. A click copies it. */
export function CopyCommand({ command }: { command: string }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return;
    const timer = setTimeout(() => setCopied(false), 2000);
    return () => clearTimeout(timer);
  }, [copied]);
  const copy = () => {
    // There is no clipboard outside a secure context. The text can still be selected.
    void navigator.clipboard?.writeText(command).then(() => setCopied(true));
  };
  return (
    <span className="command">
      <code>{command}</code>
      <button type="button" onClick={copy} aria-label={`${copied ? "copied" : "copy as CLI"}: ${command}`}>
        {copied ? "copied" : "copy as CLI"}
      </button>
    </span>
  );
}
