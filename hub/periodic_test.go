package hub_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"lighter/hub"
	"lighter/hub/retention"
	"lighter/wire"
)

// Each periodic job runs by itself, once in its period, also if the hub is restarted.
func TestPeriodicJobs(t *testing.T) {
	t.Parallel()
	c := hubConfig(t)
	c.GC = hub.DefaultConfig().GC
	c.Retention = []retention.Rule{{Repositories: []string{"ci/**"}, KeepTags: []retention.Keep{{Newest: 1}}}}
	want := []string{"collect", "retention", "scrub", "sweep"}
	run := func() *testHub {
		t.Helper()
		h := openHub(t, c)
		h.SetDueInterval(time.Millisecond)
		return runHub(t, h)
	}
	ended := func(h *testHub) (kinds []string) {
		t.Helper()
		jobs, err := h.client.Jobs(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range jobs {
			if j.State != wire.JobDone {
				t.Errorf("job %+v, want it done", j)
			}
			kinds = append(kinds, j.Kind)
		}
		slices.Sort(kinds)
		return kinds
	}
	h := run()
	for range 3000 {
		if len(ended(h)) >= len(want) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	h.stop()
	h = run()
	time.Sleep(100 * time.Millisecond) // the hub searches for due jobs up to a hundred times
	if got := ended(h); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("jobs of the kinds %v have run, want %v", got, want)
	}
	h.stop()
	c.GC.EveryMinutes, c.ScrubDays, c.Retention = 0, 0, nil // without these, only the sweep is periodic
	c.Root = t.TempDir()
	newStores(t, &c)
	h = run()
	for range 3000 {
		if len(ended(h)) > 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	h.idle()
	if got := ended(h); fmt.Sprint(got) != "[sweep]" {
		t.Errorf("jobs of the kinds %v have run, want a sweep", got)
	}
}
