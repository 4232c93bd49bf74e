package nodejobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
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
"get daemonsets"*) cat sets 2>/dev/null || echo '{"items": [{"metadata": {"namespace": "ns"}, "spec": {"template": {"spec": {"imagePullSecrets": [{"name": "pull"}], "containers": [{"image": "installer:1"}]}}}}]}' ;;
"create -f -"*) cat >jobs ;;
"get pods"*) cat pods 2>/dev/null || echo '{"items": []}' ;;
"get events"*) echo '{"items": [{"message": "older"}, {"message": "no directory /var/lib/lighter"}]}' ;;
"get jobs"*)
	if [ -e pods ]; then
		echo "{\"items\": [$(grep -o '"name":"lighter-preheat-[^"]*"' jobs | sed 's/.*/{"metadata": {&}},/' | tr -d '\n' | sed 's/,$//')]}"
		exit
	fi
	[ -e polled ] || { touch polled; exit 1; } # the API server is away once
	names=$(grep -o '"name":"lighter-preheat-[^"]*"' jobs | cut -d '"' -f 4)
	echo "{\"items\": [$(ended "$(echo "$names" | sed -n 1p)" Complete), $(ended "$(echo "$names" | sed -n 2p)" Failed)]}"
	;;
"logs job/"*"-0 "*) printf 'fetch  5 B of 7 B\n{\n  "cachedBytes": 7\n}\n' ;;
"logs job/"*"-1 "*) printf 'starting\nlighter: no hub answers\n' ;;
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
	want := []Result{{Node: "a", State: Done, Answer: json.RawMessage("{\n  \"cachedBytes\": 7\n}")},
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

// A pod that does not start is reported with its reason, and has failed after StartTimeout.
func TestPodDoesNotStart(t *testing.T) {
	for what, c := range map[string]struct {
		status string // of the pod of a
		after  time.Duration
		want   string
	}{
		"no image": {`{"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff",
			"message": "not found"}}}]}`, 2 * pollInterval, "ImagePullBackOff: not found"},
		"no root": {`{"phase": "Pending", "containerStatuses": [{"state": {"waiting":
			{"reason": "ContainerCreating"}}}]}`, usualStart + pollInterval, "no directory /var/lib/lighter"},
	} {
		synctest.Test(t, func(t *testing.T) {
			dir := kubectl(t)
			r := run{Options: options, id: "id"}
			text := fmt.Sprintf(`{"items": [{"metadata": {"name": "p", "labels": {"job-name": %q}}, "status": %s}]}`,
				r.name(0), c.status)
			err := errors.Join(os.WriteFile(filepath.Join(dir, "pods"), []byte(text), 0o600),
				os.WriteFile(filepath.Join(dir, "jobs"), fmt.Appendf(nil, `{"name":%q}`, r.name(0)), 0o600))
			if err != nil {
				t.Fatal(err)
			}
			start, first := time.Now(), time.Duration(0)
			nodes := []Result{{Node: "a", State: Running}}
			ctx, cancel := context.WithTimeout(t.Context(), StartTimeout+time.Minute)
			defer cancel()
			err = r.follow(ctx, nodes, func(r Result) {
				if first == 0 {
					first = time.Since(start)
					if r.State != Running || !strings.Contains(r.Error, c.want) {
						t.Errorf("%s: reported %+v, want a reason with %q", what, r, c.want)
					}
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if first > c.after {
				t.Errorf("%s: the reason was reported after %s, want %s at most", what, first, c.after)
			}
			if took := time.Since(start); took > StartTimeout+pollInterval || nodes[0].State != Failed ||
				!strings.Contains(nodes[0].Error, c.want) {
				t.Errorf("%s: after %s: %+v, want a failure with %q after %s", what, took, nodes[0], c.want,
					StartTimeout)
			}
		})
	}
}

// A pod that has started, or had to wait for a usual reason, has not failed.
func TestPodStarts(t *testing.T) {
	var pods []pod
	text := `[{"metadata": {"name": "p", "labels": {"job-name": "j"}},
		"status": {"phase": "%s", "containerStatuses": [{"state": {"%s": {"reason": "ContainerCreating"}}}]}}]`
	for _, state := range [][2]string{{"Running", "running"}, {"Succeeded", "terminated"}, {"Pending", "running"}} {
		if err := json.Unmarshal(fmt.Appendf(nil, text, state[0], state[1]), &pods); err != nil {
			t.Fatal(err)
		}
		if w := waits(pods, "j"); w != nil {
			t.Errorf("%s, %s: got %+v, want none", state[0], state[1], *w)
		}
	}
	if err := json.Unmarshal(fmt.Appendf(nil, text, "Pending", "waiting"), &pods); err != nil {
		t.Fatal(err)
	}
	r, result := run{}, Result{State: Running}
	if r.noteWaiting(t.Context(), &result, waits(pods, "j"), usualStart-1) || result.Error != "" {
		t.Errorf("a pod that has just been made: got %+v, want nothing", result)
	}
	if w := waits(pods, "another"); w == nil || w.pod != "" {
		t.Errorf("a job without a pod: got %+v, want a reason", w)
	}
}

// The secrets of the daemon set are used with a given image, too.
func TestSecrets(t *testing.T) {
	kubectl(t)
	for want, r := range map[int]run{1: {Options: Options{Namespace: "ns", Image: "other:1"}},
		0: {Options: Options{Namespace: "other", Image: "other:1"}}} {
		if err := r.complete(t.Context()); err != nil || len(r.secrets) != want {
			t.Errorf("got secrets %v, %v; want %d", r.secrets, err, want)
		}
	}
	// A user may have no right to list daemon sets. With both options, Run does not need it.
	t.Setenv("PATH", t.TempDir())
	r := run{Options: Options{Namespace: "ns", Image: "other:1"}}
	if err := r.complete(t.Context()); err != nil {
		t.Error(err)
	}
}

// Of several daemon sets, that in the given namespace is used. Otherwise the error names all.
func TestSeveralDaemonSets(t *testing.T) {
	dir := kubectl(t)
	const set = `{"metadata": {"namespace": "%[1]s", "name": "n"}, "spec": {"template": {"spec": {
		"containers": [{"image": "%[1]s:1"}]}}}}`
	text := `{"items": [` + fmt.Sprintf(set, "a") + "," + fmt.Sprintf(set, "b") + "]}"
	if err := os.WriteFile(filepath.Join(dir, "sets"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for namespace, want := range map[string]string{"": "a/n, b/n", "other": "a/n, b/n", "b": ""} {
		r := run{Options: Options{Namespace: namespace}}
		err := r.complete(t.Context())
		if said := fmt.Sprint(err); !strings.Contains(said, want) || (err == nil) != (r.Image == "b:1") ||
			(err == nil) != (want == "") {
			t.Errorf("namespace %q: got the image %q, %v; want an error with %q", namespace, r.Image, err, want)
		}
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

// The lines of an answer are found among those of standard error.
func TestAnswerIn(t *testing.T) {
	const answer = "{\n  \"a\": {\n    \"b\": 1\n  }\n}"
	for _, log := range []string{answer, "fetched 1 MiB\n" + answer, answer + "\ndone\n",
		"fetched 1 MiB\n{\n  \"a\": {\n    \"b\": 1\nfetched 2 MiB\n  }\n}\ndone", "{broken\n" + answer} {
		if got := string(answerIn([]byte(log))); got != answer {
			t.Errorf("in %q: got %q", log, got)
		}
	}
	if got := answerIn([]byte("nothing\n{")); got != nil {
		t.Errorf("got %q, want no answer", got)
	}
}
