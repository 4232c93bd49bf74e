package node

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Schedule says when something may be done: in any of some parts of the day, or always
// if there is none.
type Schedule []Window

// Window is a part of each day, in local time, that people write as 22:00-06:00.
type Window struct{ from, to int } // minutes of the day; to is not in it

// UnmarshalText reads what String writes.
func (w *Window) UnmarshalText(b []byte) error {
	from, to, ok := strings.Cut(string(b), "-")
	begins, err := time.Parse("15:04", strings.TrimSpace(from))
	if ok && err == nil {
		var ends time.Time
		ends, err = time.Parse("15:04", strings.TrimSpace(to))
		*w = Window{minute(begins), minute(ends)}
	}
	if !ok || err != nil || w.from == w.to {
		return fmt.Errorf("%q is not a part of the day: write 22:00-06:00, and nothing for the whole day", b)
	}
	return nil
}

func minute(t time.Time) int { return 60*t.Hour() + t.Minute() }

// String writes 22:00-06:00.
func (w Window) String() string {
	return fmt.Sprintf("%02d:%02d-%02d:%02d", w.from/60, w.from%60, w.to/60, w.to%60)
}

// MarshalText writes what String does.
func (w Window) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// Open tells whether it may be done at that time, by its clock.
func (s Schedule) Open(at time.Time) bool {
	now := minute(at)
	return len(s) == 0 || slices.ContainsFunc(s, func(w Window) bool {
		if w.from < w.to {
			return w.from <= now && now < w.to
		}
		return now >= w.from || now < w.to
	})
}

// String writes the windows, with commas between them.
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
