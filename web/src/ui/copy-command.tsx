import { useEffect, useState } from "react";

/** The same thing in a terminal: shown, and copied by a click. */
export function CopyCommand({ command }: { command: string }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return;
    const timer = setTimeout(() => setCopied(false), 2000);
    return () => clearTimeout(timer);
  }, [copied]);
  const copy = () => {
    // Without a secure context there is no clipboard; the text can still be selected.
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
