//! How calls end that cannot end well.
