package completion_test

import (
	"fmt"
	"time"

	"lighter/node/completion"
)

// A schedule has windows of local time. A window may cross midnight.
func ExampleSchedule() {
	s, err := completion.ParseSchedule([]string{"22:00-06:00", "12:00-13:00"})
	if err != nil {
		panic(err)
	}
	for _, hour := range []int{3, 9, 12, 23} {
		fmt.Println(hour, s.Open(time.Date(2026, time.May, 1, hour, 30, 0, 0, time.UTC)))
	}
	// Output:
	// 3 true
	// 9 false
	// 12 true
	// 23 true
}
