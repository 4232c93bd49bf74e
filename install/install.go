// Package install changes the files of a machine so that a program uses Lighter, and undoes it. A
// target (package containerd, systemd) plans what has to change. This package shows the plan as a
// diff, writes it, restarts services, and checks the result.
//
// It promises: a file has its old or its new contents, whatever the moment of a crash. A file that
// others have changed meanwhile is not replaced, nor one that others may write, and what it is
// instead is said. A plan that was carried out in part is completed, or undone, by the next run. If
// a service does not come back with its new configuration, it gets its previous one.
//
// Nothing is restarted unless the user asks for it.
package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/diff"

	"lighter/sleep"
)

// Target is a program that can use Lighter.
type Target interface {
	// Install plans how the program is made to use Lighter. A plan without changes says that it
	// does already.
	Install(ctx context.Context) (*Plan, error)
	// Uninstall plans how everything that Install did is undone, and nothing else.
	Uninstall(ctx context.Context) (*Plan, error)
}

// Plan is what has to be done for a target.
type Plan struct {
	Target  string
	Found   []string // what was found on this machine
	Notes   []string // what the user should know or do
	Changes []Change
	// Check examines the new contents before they are used. staged has, for the path of each
	// changed file, the path of a file with its new contents. Nil: there is nothing to check.
	Check   func(ctx context.Context, staged map[string]string) error
	Before  []Step // run before the files change
	After   []Step // run after the files have changed, even if no file had to
	Restart Restart
}

// Step is an operation that may be repeated.
type Step struct {
	What string // as the user would do it
	Run  func(ctx context.Context) error
}

// Restart says which services read the changed files when they start.
type Restart struct {
	What  string   // what is restarted: containerd
	Units []string // of systemd; empty: nothing has to be restarted, or ByHand says how
	// ByHand says what the user has to do instead, if the program is no service of the machine.
	ByHand string
	Due    bool // a restart is needed even if no file changes
	// Verify waits until the services work as planned, or returns why they do not.
	Verify func(ctx context.Context) error
	// Fallback are the changes for services that do not come back, if this run has changed no
	// file. Nil: the files stay as they are.
	Fallback []Change
}

// Refused says that a file is not edited, and which lines the user may insert by hand.
type Refused struct {
	Path, Why, Lines string
}

func (r *Refused) Error() string { return r.Path + " is not edited: " + r.Why }

// ByHand adds the lines that the user may insert by hand to the error of a file that is not edited.
func ByHand(err error, lines string) error {
	if refused := (*Refused)(nil); errors.As(err, &refused) {
		refused.Lines = lines
	}
	return err
}

// RolledBack says that a service did not come back with its new configuration, and that it runs
// with the previous one again.
type RolledBack struct {
	What  string // the service
	Cause error
}

func (r *RolledBack) Error() string {
	return fmt.Sprintf("%s does not work with the new configuration: %v; the previous configuration is in place "+
		"again, and %[1]s was restarted with it", r.What, r.Cause)
}

func (r *RolledBack) Unwrap() error { return r.Cause }

// Options are the user's wishes.
type Options struct {
	DryRun  bool // only show the changes
	Restart bool // restart services that have to be restarted
}

// Report says what was done, and what remains to be done.
type Report struct {
	Target string   `json:"target"`
	DryRun bool     `json:"dryRun,omitempty"`
	Found  []string `json:"found"`
	Files  []File   `json:"files"`
	Done   []string `json:"done"` // the commands that were run
	Next   []string `json:"next"` // what the user has to do
	Notes  []string `json:"notes"`
}

// File is a changed file in a report.
type File struct {
	Path   string `json:"path"`
	Action string `json:"action"` // create, change or remove
	Diff   string `json:"diff"`   // unified
}

// report returns the report of a plan of which nothing is done yet.
func (p *Plan) report(o Options) Report {
	r := Report{Target: p.Target, DryRun: o.DryRun, Found: append([]string{}, p.Found...), Files: []File{},
		Done: []string{}, Next: []string{}, Notes: append([]string{}, p.Notes...)}
	for _, c := range p.Changes {
		f := File{Path: c.Path, Action: "change"}
		from, to := c.Path, c.Path
		switch {
		case c.Old == nil:
			f.Action, from = "create", os.DevNull
		case c.New == nil:
			f.Action, to = "remove", os.DevNull
		}
		text := string(diff.Diff(from, c.Old, to, c.New))
		if _, unified, ok := strings.Cut(text, "\n--- "); ok { // the library's first line names a command
			text = "--- " + unified
		}
		f.Diff = text
		r.Files = append(r.Files, f)
	}
	return r
}

// Machine is the machine that is changed.
type Machine struct {
	System string // its root directory; "/" except in tests
}

// Apply carries out a plan. The report is valid even if there is an error.
func (m Machine) Apply(ctx context.Context, p *Plan, o Options) (Report, error) {
	r := p.report(o)
	if o.DryRun {
		return r, nil
	}
	unlock, err := lock(ctx, p.Changes)
	if err != nil {
		return r, err
	}
	defer unlock()
	staged, err := stage(p.Changes)
	defer discard(p.Changes, staged)
	if err != nil {
		return r, err
	}
	if p.Check != nil && len(p.Changes) > 0 {
		if err := p.Check(ctx, staged); err != nil {
			return r, fmt.Errorf("check the new configuration: %w (nothing was changed)", err)
		}
	}
	if err := run(ctx, p.Before, &r); err != nil {
		return r, err
	}
	if err := publish(p.Changes, staged); err != nil {
		return r, err
	}
	if err := run(ctx, p.After, &r); err != nil {
		return r, err
	}
	return r, m.restart(ctx, p, o, &r)
}

// run carries out steps, and stops at the first one that fails.
func run(ctx context.Context, steps []Step, r *Report) error {
	for _, s := range steps {
		if err := s.Run(ctx); err != nil {
			return fmt.Errorf("%s: %w", s.What, err)
		}
		r.Done = append(r.Done, s.What)
	}
	return nil
}

// restart restarts the services of a plan, if they have to be and the user wants it.
func (m Machine) restart(ctx context.Context, p *Plan, o Options, r *Report) error {
	s := p.Restart
	needed := s.Due || slices.ContainsFunc(p.Changes, func(c Change) bool { return !c.Live })
	if len(s.Units) == 0 && s.ByHand == "" || !needed {
		return nil
	}
	step := m.Systemctl(append([]string{"restart"}, s.Units...)...)
	switch {
	case s.ByHand != "":
		r.Next = append(r.Next, s.ByHand)
		return nil
	case !m.RunsSystemd():
		r.Next = append(r.Next, "systemd does not run on this machine: restart "+s.What+" as it was started")
		return nil
	case !o.Restart:
		r.Next = append(r.Next, step.What)
		return nil
	}
	err := step.Run(ctx)
	if err == nil {
		err = s.Verify(ctx)
	}
	if err == nil {
		r.Done = append(r.Done, step.What)
		return nil
	}
	back := inverse(p.Changes)
	if len(back) == 0 {
		back = s.Fallback
	}
	if len(back) == 0 {
		return fmt.Errorf("%s: %w", step.What, err)
	}
	return m.rollBack(context.WithoutCancel(ctx), back, step, s, err)
}

// rollBack undoes changes after a service did not come back because of cause.
func (m Machine) rollBack(ctx context.Context, back []Change, restart Step, of Restart, cause error) error {
	what, units := of.What, of.Units
	failed := fmt.Errorf("%s does not work with the new configuration: %w", what, cause)
	staged, err := stage(back)
	defer discard(back, staged)
	if err == nil {
		err = publish(back, staged)
	}
	if err != nil {
		return fmt.Errorf("%w; the previous configuration could not be restored: %w", failed, err)
	}
	// systemd has read the units that were just replaced, and refuses a service that has failed too
	// often. The restart shows whether these two have worked.
	_ = m.Systemctl("daemon-reload").Run(ctx)
	_ = m.Systemctl(append([]string{"reset-failed"}, units...)...).Run(ctx)
	if err := restart.Run(ctx); err != nil {
		return fmt.Errorf("%w; the previous configuration is in place again, and %s does not start with it: %w",
			failed, what, err)
	}
	return &RolledBack{What: what, Cause: cause}
}

// RunsSystemd reports whether systemd runs the services of the machine.
func (m Machine) RunsSystemd() bool {
	_, err := os.Stat(filepath.Join(m.System, "run/systemd/system"))
	return err == nil
}

// Path returns a path on the machine.
func (m Machine) Path(path string) string { return filepath.Join(m.System, path) }

// Missing reports whether nothing is at a path, or at the end of a symbolic link there.
func Missing(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// Await calls ask until it succeeds, at most for limit, and returns its last error.
func Await(ctx context.Context, limit time.Duration, ask func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := ask(ctx)
		if err == nil || !sleep.For(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

// LastLine returns the last line of a program's output, which usually says why the program failed.
func LastLine(output []byte) string {
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	return lines[len(lines)-1]
}
