//go:build kubernetes

package kubernetes

import (
	"context"
	"testing"
)

// contextOf returns the context of a test, or one that does not end if the test's has ended: the
// cleanups use the cluster, too.
func contextOf(t *testing.T) context.Context {
	if t.Context().Err() != nil {
		return context.Background()
	}
	return t.Context()
}
