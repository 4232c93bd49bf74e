package retention_test

import (
	"fmt"
	"time"

	"lighter/hub/retention"
)

// A rule keeps the tags of releases for ever, and the newest tag of each repository.
func ExamplePolicy_Judge() {
	policy := retention.Policy{MaxPercent: 50, Rules: []retention.Rule{{
		Repositories: []string{"ci/**"},
		KeepTags:     []retention.Keep{{Patterns: []string{"v*"}}, {Newest: 1}},
	}}}
	day := func(n int) time.Time { return time.Date(2026, time.November, n, 0, 0, 0, 0, time.UTC) }
	images := []retention.Image{
		{Name: "ci/app:v1", Repository: "ci/app", Tag: "v1", Ready: true, Pushed: day(1)},
		{Name: "ci/app:main-7", Repository: "ci/app", Tag: "main-7", Ready: true, Pushed: day(7)},
		{Name: "ci/app:main-8", Repository: "ci/app", Tag: "main-8", Ready: true, Pushed: day(8)},
		{Name: "tools/shell:1", Repository: "tools/shell", Tag: "1", Ready: true, Pushed: day(1)},
	}
	for _, v := range policy.Judge(images, day(9), nil) {
		fmt.Printf("%s %s: %s\n", v.Name, v.Then, v.Why)
	}
	// Output:
	// ci/app:main-7 goes: rule 1: no condition of keep_tags holds
	// ci/app:main-8 stays: rule 1: keep_tags 2: it is one of the newest 1
	// ci/app:v1 stays: rule 1: keep_tags 1: its tag is protected
	// tools/shell:1 stays: no rule is about tools/shell
}
