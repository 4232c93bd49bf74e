package completion

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Schedule has the parts of the day in which images may be completed in the background. An empty
// Schedule is the whole day.
type Schedule []window

// window is a part of each day, in local time.
type window struct {
	text     string // 22:00-06:00
	from, to int    // minutes since midnight; to is not included
}

// ParseSchedule parses windows that are written as 22:00-06:00.
func ParseSchedule(texts []string) (Schedule, error) {
	var windows Schedule
	for _, text := range texts {
		from, to, ok := strings.Cut(text, "-")
		begins, err := time.Parse("15:04", strings.TrimSpace(from))
		ends, failed := time.Parse("15:04", strings.TrimSpace(to))
		if !ok || err != nil || failed != nil || begins.Equal(ends) {
			return nil, fmt.Errorf("%q is not a part of the day: write 22:00-06:00, or nothing for the whole day", text)
		}
		windows = append(windows, window{text, minute(begins), minute(ends)})
	}
	return windows, nil
}

func minute(t time.Time) int { return 60*t.Hour() + t.Minute() }

// Open reports whether the time of day of at, in at's own time zone, is in a window.
func (s Schedule) Open(at time.Time) bool {
	now := minute(at)
	return len(s) == 0 || slices.ContainsFunc(s, func(w window) bool {
		if w.from < w.to {
			return w.from <= now && now < w.to
		}
		return now >= w.from || now < w.to
	})
}

// String returns the windows, separated by commas.
func (s Schedule) String() string {
	var texts []string
	for _, w := range s {
		texts = append(texts, w.text)
	}
	return strings.Join(texts, ",")
}
