package plan_test

import (
	"fmt"

	"lighter/format/plan"
	"lighter/format/trace"
)

// Similar starts become one workload; another program's start begins a new one.
func ExampleKept() {
	start := func(paths ...string) trace.Recording {
		r := trace.Recording{Starts: 1}
		for _, path := range paths {
			r.Entries = append(r.Entries, trace.Entry{Path: path, Length: 1 << 20})
		}
		return r
	}
	shell := start("/bin/bash", "/lib/libc.so.6")
	kept := plan.Sort(nil)
	kept.Add([]trace.Recording{shell, shell})
	python := start("/usr/bin/python3", "/lib/libpython3.so", "/lib/libc.so.6")
	fmt.Println("python is new:", kept.IsNew(python))
	kept.Add([]trace.Recording{python})
	for _, w := range plan.Workloads(kept.Recordings()) {
		fmt.Println(w.Starts, "starts read", w.Samples[0].Entries[0].Path)
	}
	// Output:
	// python is new: true
	// 2 starts read /bin/bash
	// 1 starts read /usr/bin/python3
}
