package hooks

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var (
	digestA = "sha256:" + strings.Repeat("a", 64)
	digestB = "sha256:" + strings.Repeat("b", 64)
)

// kindOf returns the kind of hooks that a file of testdata is for.
func kindOf(file string) string {
	kind, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".json"), "-")
	return kind
}

// The events of each sender, as its documentation has them. Names of hosts in them are ignored.
func TestDecoders(t *testing.T) {
	t.Parallel()
	for file, want := range map[string][]event{
		"harbor-push":        {{"team/app", "v1.0", false}},
		"harbor-delete":      {{"team/app", "v1.0", true}, {"team/app", "latest", true}},
		"harbor-replication": {{"mirror/alpine", "3.19", false}, {"mirror/debian", "", false}},
		"harbor-cloudevent":  {{"team/app", "v2.0", false}},
		"harbor-test":        nil,
		"harbor-quota":       nil,
		"distribution-1":     {{"library/test", "latest", false}, {"library/test", digestA, true}},
		"distribution-2":     {{"team/app", "1.2", false}, {"team/app", digestB, false}, {"team/app", "1.1", true}},
		"gitlab-pipeline":    {{"gitlab-org/gitlab-test", "", false}},
		"gitlab-job":         nil,
		"dockerhub":          {{"svendowideit/testhook", "latest", false}},
		"plain":              {{"team/app", "1", false}, {"team/app", digestA, false}, {"team/app", "old", true}},
	} {
		body, err := os.ReadFile("testdata/" + file + ".json")
		if err != nil {
			t.Fatal(err)
		}
		got, err := decoders[kindOf(file)](body)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", file, got, err, want)
		}
		if kindOf(file) == kindDistribution { // GitLab's registry sends the same
			if got, err := decodeGitLab(body); err != nil || !slices.Equal(got, want) {
				t.Errorf("%s as GitLab's: %v, %v, want %v", file, got, err, want)
			}
		}
	}
	for kind, decode := range decoders {
		for _, body := range []string{``, `{}`, `[`, `"x"`, `{"a": 1}`, `12`} {
			if got, err := decode([]byte(body)); !errors.Is(err, errNoEvents) {
				t.Errorf("%s: %q has the events %v (%v), want errNoEvents", kind, body, got, err)
			}
		}
	}
}

// fuzz checks that a decoder neither panics nor returns what is no hint.
func fuzz(f *testing.F, kind string) {
	files, err := filepath.Glob("testdata/" + kind + "*.json")
	if err != nil || len(files) == 0 {
		f.Fatalf("there are no examples of %s: %v", kind, err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	h := &hook{Hook: Hook{Name: "h", Kind: kind, Registry: "registry.example.org:5000", MayDelete: true}}
	f.Fuzz(func(t *testing.T, body []byte) {
		events, err := decoders[kind](body)
		if err != nil && events != nil {
			t.Error("there are events and an error")
		}
		for _, e := range events {
			name, hint, ok := h.hint(e)
			if ok && (!strings.HasPrefix(name, h.Registry+"/") || hint.Repository == "") {
				t.Errorf("the event %+v is about %s: %+v", e, name, hint)
			}
		}
	})
}

func FuzzHarbor(f *testing.F)       { fuzz(f, kindHarbor) }
func FuzzDistribution(f *testing.F) { fuzz(f, kindDistribution) }
func FuzzGitLab(f *testing.F)       { fuzz(f, kindGitLab) }
func FuzzDockerHub(f *testing.F)    { fuzz(f, kindDockerHub) }
func FuzzPlain(f *testing.F)        { fuzz(f, kindPlain) }
