package direct

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/store/attachment"
	"lighter/store/repository"
)

// lookTime returns how long an attached index is listed, and then looked for, in a pull that asks
// for some formats. Its blobs are fetched in three times that time. If one of these hangs, there is
// time for the formats after it.
func (m *Images) lookTime(formats []format) time.Duration {
	if formats[len(formats)-1].tables == nil {
		return m.makeTime
	}
	return m.makeTime / 4
}

// within returns a context for a part of this, which ends after a time.
func within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %s", limit))
}

// list begins to list what may be an attached index, if one of the formats is that, and returns
// what waits for the list. It ends with ctx, and after a time.
func list(
	ctx context.Context, from *repository.Repository, image digest.Digest, formats []format, limit time.Duration,
) func() ([]v1.Descriptor, error) {
	if !slices.ContainsFunc(formats, func(f format) bool { return f.tables == nil }) {
		return nil
	}
	var all []v1.Descriptor
	wait := begin(func() (err error) {
		ctx, cancel := within(ctx, limit)
		defer cancel()
		all, err = attachment.Listed(ctx, from, image)
		return err
	})
	return func() ([]v1.Descriptor, error) { err := wait(); return all, err }
}
