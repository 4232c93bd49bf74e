package completion

import (
	"strings"
	"testing"
	"time"
)

// A window includes its begin and excludes its end, and may cross midnight.
func TestSchedule(t *testing.T) {
	for _, test := range []struct {
		windows, at string
		open        bool
	}{
		{"22:00-06:00", "23:30", true}, {"22:00-06:00", "00:00", true}, {"22:00-06:00", "05:59", true},
		{"22:00-06:00", "06:00", false}, {"22:00-06:00", "21:59", false}, {"22:00-06:00", "22:00", true},
		{"12:00-13:30", "13:29", true}, {"12:00-13:30", "13:30", false},
		{"12:00-13:30,22:00-00:00", "12:30", true}, {"12:00-13:30,22:00-00:00", "23:59", true},
		{"12:00-13:30,22:00-00:00", "00:00", false},
	} {
		s, err := ParseSchedule(strings.Split(test.windows, ","))
		if err != nil || s.String() != test.windows {
			t.Fatalf("parse %s: got %s, %v; want the same windows", test.windows, s.String(), err)
		}
		at, err := time.Parse("15:04", test.at)
		if err != nil {
			t.Fatal(err)
		}
		if s.Open(at) != test.open {
			t.Errorf("%s at %s: got open %t, want %t", test.windows, test.at, !test.open, test.open)
		}
	}
	if !(Schedule{}).Open(time.Now()) {
		t.Error("no windows: got closed, want always open")
	}
	for _, wrong := range []string{"", "22:00", "22:00-", "25:00-06:00", "22-6", "06:00-06:00", "22:00-06:00-07:00"} {
		if _, err := ParseSchedule([]string{wrong}); err == nil {
			t.Errorf("%q: got no error", wrong)
		}
	}
}
