package retention

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

var now = time.Unix(1_800_000_000, 0)

// image returns a ready image that was pushed, and used, some days ago; -1: never used.
func image(name string, pushed, used int) Image {
	repository, tag, _ := strings.Cut(name, ":")
	if before, _, isDigest := strings.Cut(name, "@"); isDigest {
		repository, tag = before, ""
	}
	i := Image{Name: name, Repository: repository, Tag: tag, Ready: true, Pushed: now.Add(-time.Duration(pushed) * day)}
	if used >= 0 {
		i.Used = now.Add(-time.Duration(used) * day)
	}
	return i
}

// verdicts returns the names of all images with what becomes of them.
func verdicts(p Policy, images []Image, confirmed ...string) string {
	var all []string
	for _, v := range p.Judge(images, now, confirmed) {
		all = append(all, v.Name+" "+v.Then)
	}
	return strings.Join(all, ", ")
}

// An image goes if the first rule about its repository does not keep it. Images that are not ready
// stay.
func TestRules(t *testing.T) {
	unready := image("a:0", 100, -1)
	unready.Ready = false
	images := []Image{image("a:1", 40, 1), image("a:2", 30, 20), image("a:3", 20, -1), image("a:rc1", 10, -1),
		image("a@sha256:00", 50, 5), unready}
	rule := func(keep ...Keep) Rule { return Rule{Repositories: []string{"a"}, KeepTags: keep} }
	for name, test := range map[string]struct {
		rules []Rule
		goes  string
	}{
		"no rule":                    {nil, ""},
		"rule of another repository": {[]Rule{{Repositories: []string{"b"}, KeepTags: []Keep{{Newest: 1}}}}, ""},
		"newest":                     {[]Rule{rule(Keep{Newest: 2})}, "a:1 a:2"},
		"newest of a pattern":        {[]Rule{rule(Keep{Patterns: []string{"[0-9]"}, Newest: 2})}, "a:1 a:rc1"},
		"pushed within":              {[]Rule{rule(Keep{PushedWithinDays: 25})}, "a:1 a:2"},
		"used within":                {[]Rule{rule(Keep{UsedWithinDays: 15})}, "a:2 a:3 a:rc1"},
		"one condition suffices":     {[]Rule{rule(Keep{Newest: 1, UsedWithinDays: 2})}, "a:2 a:3"},
		"protected":                  {[]Rule{rule(Keep{Patterns: []string{"rc*", "1"}})}, "a:2 a:3"},
		"several keep_tags": {[]Rule{rule(Keep{Patterns: []string{"[0-9]"}, Newest: 1},
			Keep{Patterns: []string{"?"}, PushedWithinDays: 35})}, "a:1 a:rc1"},
		"untagged":                     {[]Rule{{Repositories: []string{"a"}, UntaggedDays: 5}}, "a@sha256:00"},
		"untagged, used":               {[]Rule{{Repositories: []string{"a"}, UntaggedDays: 6}}, ""},
		"the first rule counts":        {[]Rule{rule(Keep{}), rule(Keep{Newest: 1})}, ""},
		"pushed within a million days": {[]Rule{rule(Keep{PushedWithinDays: 1_000_000})}, ""},
		"used within a million days":   {[]Rule{rule(Keep{UsedWithinDays: 1 << 60})}, "a:3 a:rc1"},
		"untagged for a million days":  {[]Rule{{Repositories: []string{"a"}, UntaggedDays: 1_000_000}}, ""},
		"a pushed limit at its moment": {[]Rule{rule(Keep{PushedWithinDays: 20})}, "a:1 a:2 a:3"},
	} {
		goes := ""
		for _, v := range (Policy{test.rules, 100}).Judge(images, now, nil) {
			if v.Then == Goes {
				goes += " " + v.Name
			}
			if v.Why == "" {
				t.Errorf("%s: no reason for %s", name, v.Name)
			}
		}
		if strings.TrimSpace(goes) != test.goes {
			t.Errorf("%s: the images %q go, want %q", name, goes, test.goes)
		}
	}
}

// In a pattern of repositories, * stays within a part of a name; ** matches any number of parts.
func TestPatterns(t *testing.T) {
	for _, test := range []struct {
		pattern, matching, others string
	}{
		{"a", "a", "b a/b"},
		{"ci/*", "ci/a", "ci ci/a/b cia"},
		{"ci/**", "ci/a ci/a/b ci", "cia b/ci"},
		{"**", "a a/b host:5000/a", ""},
		{"**/test", "test a/test a/b/test", "a/test/b"},
		{"host:5000/*/x-?", "host:5000/a/x-1", "host:5000/x-1 host/a/x-1"},
	} {
		r := Rule{Repositories: []string{test.pattern}}
		for _, name := range strings.Fields(test.matching) {
			if !r.isAbout(name) {
				t.Errorf("%s does not match %s", test.pattern, name)
			}
		}
		for _, name := range strings.Fields(test.others) {
			if r.isAbout(name) {
				t.Errorf("%s matches %s", test.pattern, name)
			}
		}
	}
}

// Rules that would remove more than a share of a repository wait for a confirmation of that
// repository.
func TestShare(t *testing.T) {
	p := Policy{[]Rule{{Repositories: []string{"**"}, KeepTags: []Keep{{Newest: 2}}}}, 50}
	var images []Image
	for i := range 4 {
		images = append(images, image(fmt.Sprintf("half:%d", i), 9-i, -1))
	}
	for i := range 5 {
		images = append(images, image(fmt.Sprintf("more:%d", i), 9-i, -1))
	}
	const half = "half:0 goes, half:1 goes, half:2 stays, half:3 stays, "
	want := half + "more:0 waits, more:1 waits, more:2 waits, more:3 stays, more:4 stays"
	if got := verdicts(p, images); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	want = half + "more:0 goes, more:1 goes, more:2 goes, more:3 stays, more:4 stays"
	if got := verdicts(p, images, "more"); got != want {
		t.Errorf("confirmed: %s, want %s", got, want)
	}
	if why := p.Judge(images, now, nil)[4].Why; !strings.Contains(why, "--confirm more") {
		t.Errorf("the reason %q does not say how to confirm", why)
	}
}

// The error about an invalid rule says which rule it is, and what is wrong.
func TestCheck(t *testing.T) {
	keep := []Keep{{Newest: 1}}
	for want, r := range map[string]Rule{
		"":                      {Repositories: []string{"a/**"}, KeepTags: keep},
		"repositories is empty": {KeepTags: keep},
		"removes nothing":       {Repositories: []string{"a"}},
		"untagged_days":         {Repositories: []string{"a"}, UntaggedDays: -1},
		`"[" is no pattern`:     {Repositories: []string{"["}, KeepTags: keep},
		"below zero":            {Repositories: []string{"a"}, KeepTags: []Keep{{Newest: -1}}},
		`keep_tags 1: "["`:      {Repositories: []string{"a"}, KeepTags: []Keep{{Patterns: []string{"["}}}},
	} {
		err := Check([]Rule{{Repositories: []string{"x"}, KeepTags: keep}, r})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) ||
			!strings.HasPrefix(err.Error(), "retention rule 2: ")) {
			t.Errorf("%+v: %v, want %q", r, err, want)
		}
	}
}
