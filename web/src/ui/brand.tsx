/** The logo: a buoy on the water, which marks a safe channel. */
export function Brand() {
  return (
    <span className="brand">
      <svg viewBox="0 0 32 32" width="24" height="24" aria-hidden="true">
        <rect width="32" height="32" rx="7" className="brand-ground" />
        <path d="M16 5l5 9h-10z" className="brand-mark" />
        <path d="M10 17h12l2 6H8z" className="brand-mark" />
        <path d="M5 27c3-2.4 5-2.4 7.300 0s4.400 2.400 7.400 0 5-2.400 7.300 0" className="brand-water" />
      </svg>
      Farwater
    </span>
  );
}
