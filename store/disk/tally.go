package disk

import (
	"log/slog"
	"sync/atomic"
)

// tally counts faults of one kind. It logs the first, second, fourth, eighth and so on: a failing
// disk must not fill the log.
type tally struct{ atomic.Int64 }

func (t *tally) warn(log *slog.Logger, message string, fields ...any) {
	if n := t.Add(1); n&(n-1) == 0 {
		log.Warn(message, append(fields, "count", n)...)
	}
}
