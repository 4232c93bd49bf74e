package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"lighter/node/report"
)

// The annotation counts lazy images, and says why others are not lazy. It is bounded.
func TestImages(t *testing.T) {
	s := report.Status{Images: []report.ImageStatus{{Image: "r/b:1", Why: "no hub knows it"},
		{Image: "r/a:1", Lazy: true}, {Chain: "sha256:12", Why: strings.Repeat("é", maxWhy)}}}
	want := "1 lazy, 2 not; r/b:1: no hub knows it; sha256:12: " + strings.Repeat("é", maxWhy/2) + "…"
	if got := images(s); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for i := range 10_000 {
		s.Images = append(s.Images, report.ImageStatus{Image: fmt.Sprint("r/", i), Why: strings.Repeat("x", 1000)})
	}
	if got := images(s); len(got) > 32<<10 || !strings.HasSuffix(got, "; 9952 more") {
		t.Errorf("many images: got %d bytes that end with %q, want at most 32 KiB and the number of the others",
			len(got), got[len(got)-20:])
	}
}

// The node's annotation follows the state of Lighter's node.
func TestAnnotation(t *testing.T) {
	c, a, _ := newAgent(t)
	await := func(want string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			c.mu.Lock()
			got := c.annotated[ImagesAnnotation]
			c.mu.Unlock()
			if got == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("the annotation: got %q, want %q", got, want)
			}
		}
	}
	start(t, a, a.Run)
	down := serve(t, a.Host, &lighterNode{report.Status{Images: []report.ImageStatus{{Lazy: true}}}})
	await("1 lazy, 0 not")
	down()
	await("")
}
