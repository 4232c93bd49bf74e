package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// touched is a Uses that counts the calls of its Touch, and keeps the digests that it gets.
type touched struct {
	Uses
	calls   int
	digests map[string]bool
}

func (u *touched) Touch(_ context.Context, digests []string, _ time.Duration) error {
	u.calls++
	for _, d := range digests {
		u.digests[d] = true
	}
	return nil
}

// Repository.Touch passes all that an index names to Uses.Touch, in few calls. This includes what
// indexes in it name. If a manifest is missing, the rest is touched nevertheless.
func TestTouchOfAnIndex(t *testing.T) {
	uses := &touched{digests: map[string]bool{}}
	r, err := Open(t.Context(), Dir(t.TempDir()), nil, uses, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	repository, want := r.Repository("a"), map[string]bool{}
	indexOf := func(parts ...Manifest) Manifest {
		index := v1.Index{MediaType: v1.MediaTypeImageIndex}
		index.SchemaVersion = 2
		for _, m := range parts {
			index.Manifests = append(index.Manifests, v1.Descriptor{MediaType: m.MediaType,
				Digest: digest.Digest(m.Digest), Size: int64(len(m.Bytes))})
		}
		b, err := json.Marshal(index)
		if err != nil {
			t.Fatal(err)
		}
		m := Manifest{MediaType: index.MediaType, Digest: digest.FromBytes(b).String(), Bytes: b}
		want[m.Digest] = true
		return m
	}
	store := func(m Manifest) Manifest {
		if err := repository.PutManifest(t.Context(), "", m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	const images = 3 * touchedAtOnce
	layer := put(t, r, "a", []byte("layer"))
	var parts []Manifest
	for i := range images {
		config := put(t, r, "a", fmt.Appendf(nil, `{"os": "%d"}`, i))
		m := store(manifestOf(t, config, layer))
		want[m.Digest], want[config.Digest.String()] = true, true
		parts = append(parts, m)
	}
	want[layer.Digest.String()] = true
	inner := store(indexOf(parts[1:]...))
	missing := Manifest{MediaType: v1.MediaTypeImageManifest, Digest: digest.FromString("missing").String()}
	want[missing.Digest] = true
	*uses = touched{digests: map[string]bool{}}
	if err := repository.Touch(t.Context(), indexOf(inner, missing, parts[0])); err != nil {
		t.Fatal(err)
	}
	for d := range want {
		if !uses.digests[d] {
			t.Errorf("digest %s is not touched, want it to be", d)
		}
	}
	if len(uses.digests) != len(want) {
		t.Errorf("%d digests are touched, want %d", len(uses.digests), len(want))
	}
	if most := images/touchedAtOnce + 3; uses.calls > most {
		t.Errorf("touched in %d calls, want %d at most", uses.calls, most)
	}
}

// If a manifest below an index cannot be read, Touch fails: what this manifest names is not
// protected against deletion.
func TestTouchFails(t *testing.T) {
	uses := &touched{digests: map[string]bool{}}
	r, err := Open(t.Context(), Dir(t.TempDir()), nil, uses, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	index, err := json.Marshal(v1.Index{Manifests: []v1.Descriptor{{Digest: digest.FromString("x")}}})
	if err != nil {
		t.Fatal(err)
	}
	// Nothing can be read from a repository with an invalid name.
	err = r.Repository("UPPER").Touch(t.Context(), Manifest{Bytes: index})
	if err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("got %v, want an error other than ErrNotFound", err)
	}
}
