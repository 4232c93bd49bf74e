// Package eventually makes tests wait for what happens soon, however fast the machine is.
package eventually

import (
	"testing"
	"time"
)

// limit is how long a test waits: longer than what happens takes on any machine that works.
const limit = 3 * time.Minute

// Holds waits until a condition holds. If it does not hold in time, the test fails, and says what
// it has waited for.
func Holds(tb testing.TB, what string, condition func() bool) {
	tb.Helper()
	for end := time.Now().Add(limit); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("waited %s for %s", limit, what)
		}
	}
}
