package nodejobs

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// kubectl puts a program in PATH that stands for kubectl: a cluster with the nodes a and b, which
// are ready, and c, which is not. The job of a completes, that of b fails. The program's calls are
// lines of the file calls, and the jobs that it made are in the file jobs.
func kubectl(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	const script = `#!/bin/sh
cd "$(dirname "$0")" && echo "$*" >>calls
ready() { printf '{"metadata": {"name": "%s"}, "status": {"conditions": [{"type": "Ready", "status": "%s", "message": "m"}]}}' "$1" "$2"; }
ended() { printf '{"metadata": {"name": "%s"}, "status": {"conditions": [{"type": "%s", "status": "True", "message": "deadline"}]}}' "$1" "$2"; }
case "$*" in
"get nodes --selector none"*) echo '{"items": []}' ;;
"get nodes"*) echo "{\"items\": [$(ready a True), $(ready b True), $(ready c False)]}" ;;
"get daemonsets"*) echo '{"items": [{"metadata": {"namespace": "ns"}, "spec": {"template": {"spec": {"imagePullSecrets": [{"name": "pull"}], "containers": [{"image": "installer:1"}]}}}}]}' ;;
"create -f -"*) cat >jobs ;;
"get jobs"*)
	[ -e polled ] || { touch polled; exit 1; } # the API server is away once
	names=$(grep -o '"name":"lighter-preheat-[^"]*"' jobs | cut -d '"' -f 4)
	echo "{\"items\": [$(ended "$(echo "$names" | sed -n 1p)" Complete), $(ended "$(echo "$names" | sed -n 2p)" Failed)]}"
	;;
"logs job/"*-0*) echo '{"cachedBytes": 7}' ;;
"logs job/"*-1*) printf 'starting\nlighter: no hub answers\n' ;;
"delete jobs"*) ;;
*) echo "unexpected: $*" >&2; exit 1 ;;
esac
`
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return dir
}

var options = Options{Selector: "pool=gpu", Root: "/var/lib/lighter", Timeout: time.Hour,
	Args: []string{"preheat", "--json", "r/i:1"}}

// Run makes a job for each node that is ready, in the namespace and with the image of the installed
// daemon set, and removes the jobs. Its results say what has happened on each node.
func TestRun(t *testing.T) {
	dir := kubectl(t)
	var reported []string
	got, err := Run(t.Context(), options, func(r Result) { reported = append(reported, r.Node+" "+r.State) })
	if err != nil {
		t.Fatal(err)
	}
	want := []Result{{Node: "a", State: Done, Answer: json.RawMessage(`{"cachedBytes": 7}`)},
		{Node: "b", State: Failed, Error: "lighter: no hub answers"},
		{Node: "c", State: Failed, Error: "the node is not ready: m"}}
	for i, w := range want {
		if len(got) != len(want) || got[i].State != w.State || got[i].Error != w.Error ||
			string(got[i].Answer) != string(w.Answer) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	}
	if strings.Join(reported, ", ") != "c failed, a done, b failed" {
		t.Errorf("reported: %q, want each node once", reported)
	}
	jobs, err := os.ReadFile(filepath.Join(dir, "jobs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"nodeName":"a"`, `"nodeName":"b"`, `"image":"installer:1"`, `"drop":["ALL"]`,
		`"imagePullSecrets":[{"name":"pull"}]`, `"args":["preheat","--json","r/i:1","--root","/var/lib/lighter"]`} {
		if !strings.Contains(string(jobs), want) {
			t.Errorf("the jobs have no %s: %s", want, jobs)
		}
	}
	if strings.Contains(string(jobs), `"nodeName":"c"`) {
		t.Errorf("there is a job for a node that is not ready: %s", jobs)
	}
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil || !strings.Contains(string(calls), "delete jobs --selector "+jobLabel) ||
		!strings.Contains(string(calls), "--namespace ns") {
		t.Errorf("calls of kubectl: %v\n%s\nwant the removal of the jobs, in the namespace ns", err, calls)
	}
}

// Without a selected node, without kubectl, and after an interrupt, Run fails with one clear line.
func TestRunFails(t *testing.T) {
	dir := kubectl(t)
	none := options
	none.Selector = "none"
	if _, err := Run(t.Context(), none, nil); err == nil || !strings.Contains(err.Error(), `"none"`) {
		t.Errorf("no node: got %v, want an error that names the selector", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := Run(ctx, options, func(Result) { cancel() }); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupt: got %v, want %v", err, context.Canceled)
	}
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil || !strings.Contains(string(calls), "delete jobs") {
		t.Errorf("calls after an interrupt: %v\n%s\nwant the removal of the jobs", err, calls)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := Run(t.Context(), options, nil); err == nil || !strings.Contains(err.Error(), "no kubectl in PATH") {
		t.Errorf("without kubectl: got %v, want an error that says so", err)
	}
}
