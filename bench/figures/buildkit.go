package figures

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"lighter/bench"
	"lighter/test/testkit/buildkitd"
	"lighter/test/testkit/site"
)

// buildkit builds one step on an image, RUN true, in place of the workload: what a step prints is
// BuildKit's matter. The build has no output.
type buildkit struct {
	*run
	builder *buildkitd.Builder
}

func (*buildkit) name() string { return "BuildKit RUN true" }

func (b *buildkit) prepare(ctx context.Context, mode string) (err error) {
	if err := b.Site.Machine.Wipe(ctx); err != nil {
		return err
	}
	worker := buildkitd.Overlayfs
	if mode == site.Lighter {
		worker = buildkitd.Lazy(b.Site)
	}
	b.builder, err = buildkitd.Start(ctx, b.Site, "buildkit", worker)
	return err
}

func (b *buildkit) start(ctx context.Context, _ string, w bench.Workload) error {
	dockerfile := "FROM " + site.Reference(w.Image) + "\nRUN true\n"
	if err := os.WriteFile(filepath.Join(b.builder.Dir, "Dockerfile"), []byte(dockerfile), 0o644); err != nil {
		return err
	}
	return b.builder.Build(ctx, b.builder.Dir)
}

func (b *buildkit) end(ctx context.Context, started bool) (err error) {
	if b.builder == nil {
		return nil
	}
	if started { // buildkitd's state was empty, so a result of the step is there only if it has run
		results, failed := b.builder.Ctl(ctx, "du", "--verbose")
		if err = failed; err == nil && !strings.Contains(results, "exec /bin/sh -c true") {
			err = fmt.Errorf("the step has not run: buildkitd has only these results: %s", results)
		}
	}
	err = errors.Join(err, b.builder.Stop(), os.RemoveAll(b.builder.Dir))
	b.builder = nil
	return err
}
