package figures

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"lighter/bench"
	"lighter/test/testkit/site"
	"lighter/test/testkit/workdir"
)

// Targets of the figures attach and export.
const (
	attachRatio  = 1.5 // processor time of lighter attach : of soci create
	attachedSize = 0.8 // the artifact without startup packs, in percent of the image's layers
	exportRatio  = 0.5 // processor time of lighter export : of stargz convert
)

// contest is a task that a lighter command and a peer's tool do for the largest image. Each round
// has a repository of its own with the image, in which the registry has none of the results yet.
type contest struct {
	figure       string
	target       float64                          // maximum of the ratio of their processor times
	tool         string                           // the peer's program
	ours, theirs func(repository string) []string // the arguments of both programs
}

// attach compares lighter attach with the creation of a SOCI index.
func (r *run) attach(ctx context.Context) error {
	key := filepath.Join(r.Site.Dir, "attach.pem")
	output, err := r.contest(ctx, contest{"attach", attachRatio, "soci",
		func(repository string) []string {
			return []string{"attach", "--json", "--plain-http", "--make-key", "--key", key, site.Reference(repository)}
		},
		func(repository string) []string {
			return []string{"create", "--plain-http", site.Reference(repository)}
		}})
	if err != nil {
		return err
	}
	var made struct {
		Done []struct{ Index, Layers int64 }
	}
	if err := json.Unmarshal(output, &made); err != nil {
		return fmt.Errorf("output of lighter attach: %w", err)
	}
	if len(made.Done) != 1 || made.Done[0].Layers == 0 {
		return fmt.Errorf("lighter attach reports %d platforms, want one with layers: %s", len(made.Done), output)
	}
	size, of := made.Done[0].Index, made.Done[0].Layers
	r.rows = append(r.rows, benchRow{row: row{Workload: "attached artifact", Mode: site.Lighter, Bytes: size},
		Image: largestImage, Rounds: 1, Compressed: of})
	v := verdict{Figure: "attach", What: "artifact without startup packs : image", Lighter: bench.Size(size), Unit: "%"}
	v.Value, v.Target, v.Result = atMost(100*float64(size)/float64(of), attachedSize)
	r.verdicts = append(r.verdicts, v)
	return nil
}

// export compares lighter export with stargz' converter.
func (r *run) export(ctx context.Context) error {
	_, err := r.contest(ctx, contest{"export", exportRatio, "stargz",
		func(repository string) []string {
			return []string{"export", "--format", "estargz", "--source-plain-http", "--plain-http", "--to",
				"docker://" + site.Reference(repository+"-lighter"), site.Reference(repository)}
		},
		func(repository string) []string {
			return []string{"convert", "--kind", "estargz", "--plain-http", site.Reference(repository),
				site.Reference(repository + "-stargz")}
		}})
	return err
}

// contest measures the processor time of both programs, and judges their ratio. It returns the last
// output of the lighter command.
func (r *run) contest(ctx context.Context, c contest) (output []byte, err error) {
	work, err := workdir.Path()
	if err != nil {
		return nil, err
	}
	tool := filepath.Join(work, "tools", c.tool)
	if _, err := exec.LookPath(tool); err != nil {
		return nil, fmt.Errorf("%w (test/setup peers builds it)", err)
	}
	layout, err := r.Config.Layout(largestImage)
	if err != nil {
		return nil, err
	}
	var ours, theirs []float64
	for round := range r.Rounds {
		repository := fmt.Sprintf("%s-%d", c.figure, round)
		if err := r.Site.Push(ctx, layout, repository); err != nil {
			return nil, err
		}
		took, _, err := processorTime(ctx, tool, c.theirs(repository)...)
		if err != nil {
			return nil, err
		}
		theirs = append(theirs, took)
		if took, output, err = processorTime(ctx, r.Lighter, c.ours(repository)...); err != nil {
			return nil, err
		}
		ours = append(ours, took)
		bench.Say("%d/%d  %s %s: processor time %s, %s: %s", round+1, r.Rounds, largestImage, c.figure,
			bench.Seconds(took), c.tool, bench.Seconds(theirs[round]))
	}
	r.rows = append(r.rows, timesRow(largestImage, c.figure+", processor time", c.tool, theirs),
		timesRow(largestImage, c.figure+", processor time", site.Lighter, ours))
	r.judge(c.figure, largestImage+", processor time : "+c.tool, bench.Median(theirs), bench.Median(ours), c.target)
	return output, nil
}

// processorTime runs a program on the registry's side. It returns the processor time of the program
// and of its children, in seconds, and the program's output.
func processorTime(ctx context.Context, program string, args ...string) (seconds float64, output []byte, err error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if output, err = cmd.Output(); err != nil {
		return 0, nil, fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err,
			strings.TrimSpace(stderr.String()))
	}
	return (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), output, nil
}
