package pullthrough

import (
	"context"
	"testing"
	"time"

	"lighter/hub/pull"
)

// A client may look into the memory of the hub just before the answer to another client arrives,
// and ask just after it. The registry is not asked again.
func TestAskNotAgain(t *testing.T) {
	s := New(t.Context(), Config{Open: func(context.Context, string, Login) (*pull.Source, error) {
		return &pull.Source{}, nil
	}})
	t.Cleanup(func() { s.Close() })
	asked := 0
	ask := func(came time.Time, key string, want int) {
		t.Helper()
		rd := &reader{request: &request{registry: &Registry{}}, key: key, came: came}
		err := s.ask(t.Context(), rd, "tag 1", func(context.Context, *pull.Source) error { asked++; return nil })
		if err != nil || asked != want {
			t.Errorf("error %v, the registry was asked %d times, want %d", err, asked, want)
		}
	}
	before := time.Now()
	ask(before, "a", 1)
	ask(before, "a", 1)
	ask(before, "b", 2) // another reader
	ask(time.Now(), "a", 3)
}
