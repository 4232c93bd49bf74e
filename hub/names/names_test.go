package names

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/oci"
	"lighter/hub/registry"
	"lighter/test/testkit/catalogtest"
	"lighter/wire"
)

// nothingIsIngested has jobs that no queue runs.
type nothingIsIngested struct{}

func (nothingIsIngested) Kind() string { return "image" }
func (nothingIsIngested) Job(name, root string) catalog.Job {
	return catalog.Job{Kind: "image", Key: name, Root: root}
}
func (nothingIsIngested) IsCopy(catalog.Job) bool { return false }

func newService(t *testing.T) *Service {
	t.Helper()
	return newServiceOf(t, filepath.Join(t.TempDir(), "catalog.db"))
}

// newServiceOf returns a service with a catalog in a file.
func newServiceOf(t *testing.T, file string) *Service {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	r, err := registry.Open(t.Context(), registry.Dir(t.TempDir()), nil, nil, nil, log)
	if err != nil {
		t.Fatal(err)
	}
	c := catalogtest.Open(t, file)
	return New(c, r, jobs.NewRunner().Queue(c.Jobs, "owner", log), nothingIsIngested{}, nil, log)
}

// pushIndex stores an index without manifests.
func pushIndex(t *testing.T, to registry.Repository, tag string) registry.Manifest {
	t.Helper()
	index := v1.Index{MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{},
		Annotations: map[string]string{"tag": tag}}
	index.SchemaVersion = 2
	text, err := json.Marshal(index)
	if err != nil {
		t.Fatal(err)
	}
	m := registry.Manifest{MediaType: index.MediaType, Digest: digest.FromBytes(text).String(), Bytes: text}
	if err := to.PutManifest(t.Context(), tag, m); err != nil {
		t.Fatal(err)
	}
	return m
}

// A process is stopped while it gives a name to a copied image, and another process gives the name
// to a pushed image. The first process wakes up, and leaves the pushed image under the name.
func TestCopyThatWakesUpAfterAPush(t *testing.T) {
	t.Parallel()
	ctx, log := t.Context(), slog.New(slog.DiscardHandler)
	s := newService(t)
	other := New(s.catalog, s.registry, jobs.NewRunner().Queue(s.catalog.Jobs, "other", log), s.ingestion, nil, log)
	repository, ref := s.registry.Repository("a"), wire.Ref{Repository: "a", Tag: "1"}
	copied, pushed := pushIndex(t, repository, "copied"), pushIndex(t, repository, "pushed")
	job := s.ingestion.Job(ref.Name(), copied.Digest)
	if _, err := s.catalog.Jobs.Add(ctx, job, 0); err != nil {
		t.Fatal(err)
	}
	mine, err := s.catalog.Jobs.Claim(ctx, "owner", []catalog.Slot{{Kind: s.ingestion.Kind()}}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	push := func() error {
		settled, err := other.Changing(ctx, ref.Repository, ref.Tag)
		if err != nil {
			return err
		}
		if err := repository.Tag(ctx, ref.Tag, pushed); err != nil {
			return err
		}
		if err := other.Pushed(ctx, ref.Repository, ref.Tag); err != nil {
			return err
		}
		if !settled() {
			return errors.New("the push was not announced until its end")
		}
		return nil
	}
	err = s.NameCopy(ctx, mine.Lease(), ref, copied, func() error { // stopped here, after Hold
		if err := expire(ctx, s.catalog.Jobs, mine); err != nil {
			return err
		}
		if err := push(); err != nil {
			return err
		}
		return repository.Tag(ctx, ref.Tag, copied)
	})
	if !errors.Is(err, catalog.ErrLost) {
		t.Errorf("got error %v, want that the job was lost", err)
	}
	if now, err := repository.Manifest(ctx, ref.Tag); err != nil || now.Digest != pushed.Digest {
		t.Errorf("the tag points to %s (%v), want the pushed image %s", now.Digest, err, pushed.Digest)
	}
}

// expire ends the lease of a job, as if its owner had not extended it.
func expire(ctx context.Context, q *catalog.Jobs, j catalog.Job) error {
	_, err := q.Extend(ctx, j.Lease(), -time.Second, nil)
	return err
}

// If the catalog cannot record a name's images, putOwn returns an error.
func TestNameThatTheCatalogCannotRecord(t *testing.T) {
	t.Parallel()
	s := newService(t)
	root := pushIndex(t, s.registry.Repository("a"), "1")
	wanted := oci.Member{Manifest: registry.Manifest{Digest: digest.FromString("wanted").String()}, Wanted: true}
	members := &oci.Members{Root: root, Manifests: []oci.Member{wanted}}
	if err := s.catalog.Close(); err != nil {
		t.Fatal(err)
	}
	images, err := s.putOwn(t.Context(), wire.Ref{Repository: "a", Tag: "1"}, members, false)
	if err == nil {
		t.Errorf("the images are %+v, want an error", images)
	}
}

// If the deletion of a manifest cannot be announced, nothing is deleted, and pushes of the manifest
// need not wait.
func TestDeletionThatCannotBeAnnounced(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "catalog.db")
	s, manifest := newServiceOf(t, file), digest.FromString("manifest").String()
	db, err := catalogtest.OpenLarge(file)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Execute(t.Context(), `ALTER TABLE jobs RENAME TO lost`); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Changing(t.Context(), "a", manifest); err == nil {
		t.Error("the deletion was announced without a table of jobs, want an error")
	}
	if err := s.catalog.Blobs.Touch(t.Context(), []string{manifest}, 0); err != nil {
		t.Errorf("touched the manifest: %v, want that it is not locked", err)
	}
}
