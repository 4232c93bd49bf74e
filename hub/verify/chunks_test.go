package verify

import (
	"context"
	"errors"
	"net/url"
	"syscall"
	"testing"

	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/gcerrors"

	"lighter/format/chunk"
	"lighter/hub/objects"
	"lighter/hub/report"
)

// failing is a bucket whose objects cannot be read because of err.
type failing struct {
	driver.Bucket
	err error
}

func (f failing) OpenBucketURL(context.Context, *url.URL) (*blob.Bucket, error) {
	return blob.NewBucket(f), nil
}

func (f failing) ListPaged(context.Context, *driver.ListOptions) (*driver.ListPage, error) {
	return &driver.ListPage{}, nil
}

func (f failing) Attributes(context.Context, string) (*driver.Attributes, error) { return nil, f.err }
func (f failing) ErrorCode(error) gcerrors.ErrorCode                             { return gcerrors.Unknown }
func (f failing) ErrorAs(error, any) bool                                        { return false }
func (f failing) Close() error                                                   { return nil }

// An error of the process's disk ends the verification with that error. It is not reported as a
// problem of the image, and chunks that were not read do not count as bad.
func TestDiskErrorEndsVerification(t *testing.T) {
	blob.DefaultURLMux().RegisterBucket("failing", failing{err: syscall.ENOSPC})
	store, err := objects.Open(t.Context(), "failing://bucket")
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	v := &verification{Verifier: &Verifier{objects: store}, progress: &report.Progress{}, found: &problems{},
		bad: map[chunk.ID]bool{}}
	unit := unitCheck{Unit: chunk.Unit{Pack: chunk.ID{1}}, refs: []chunk.Ref{{ID: chunk.ID{2}, Length: 3}}}
	if err := v.checkUnits(t.Context(), []unitCheck{unit}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got error %v, want %v", err, syscall.ENOSPC)
	}
	if len(v.found.list) > 0 || len(v.bad) > 0 {
		t.Errorf("got problems %q and %d bad chunks, want none", v.found.list, len(v.bad))
	}
}
