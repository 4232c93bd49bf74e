package completion

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Schedule is when completion may fetch: in any of its windows, or always if it has none.
type Schedule []Window

// Window is a part of each day, in local time, written as 22:00-06:00.
type Window struct{ from, to int } // minutes of the day, without to

// UnmarshalText parses what String returns.
func (w *Window) UnmarshalText(b []byte) error {
	from, to, ok := strings.Cut(string(b), "-")
	begins, err := time.Parse("15:04", strings.TrimSpace(from))
	if ok && err == nil {
		var ends time.Time
		ends, err = time.Parse("15:04", strings.TrimSpace(to))
		*w = Window{minute(begins), minute(ends)}
	}
	if !ok || err != nil || w.from == w.to {
		return fmt.Errorf("%q is not a part of the day: write 22:00-06:00, or nothing for the whole day", b)
	}
	return nil
}

func minute(t time.Time) int { return 60*t.Hour() + t.Minute() }

// String returns the window as 22:00-06:00.
func (w Window) String() string {
	return fmt.Sprintf("%02d:%02d-%02d:%02d", w.from/60, w.from%60, w.to/60, w.to%60)
}

// MarshalText implements encoding.TextMarshaler.
func (w Window) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// Open reports whether the time is in a window, by the time's own clock.
func (s Schedule) Open(at time.Time) bool {
	now := minute(at)
	return len(s) == 0 || slices.ContainsFunc(s, func(w Window) bool {
		if w.from < w.to {
			return w.from <= now && now < w.to
		}
		return now >= w.from || now < w.to
	})
}

// String returns the windows, separated by commas.
func (s *Schedule) String() string { return strings.Join(s.GetSlice(), ",") }

// Set implements the flag packages' Value.
func (s *Schedule) Set(text string) error { return s.Replace(strings.Split(text, ",")) }

// Type implements pflag's Value.
func (s *Schedule) Type() string { return "windows" }

// Append implements pflag's SliceValue.
func (s *Schedule) Append(text string) error { return s.Replace(append(s.GetSlice(), text)) }

// Replace implements pflag's SliceValue.
func (s *Schedule) Replace(texts []string) error {
	windows := make(Schedule, len(texts))
	for i, text := range texts {
		if err := windows[i].UnmarshalText([]byte(text)); err != nil {
			return err
		}
	}
	*s = windows
	return nil
}

// GetSlice implements pflag's SliceValue.
func (s *Schedule) GetSlice() []string {
	texts := make([]string, len(*s))
	for i, w := range *s {
		texts[i] = w.String()
	}
	return texts
}
