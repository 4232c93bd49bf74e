package report

import "testing"

func TestRedactedReasons(t *testing.T) {
	const name = "registry.example.org:5000/team/app:2024"
	for text, want := range map[string]string{
		"image " + name + ": layer 3: unexpected end": "image " + name + ": layer 3: unexpected end",
		`Get "https://10.1.2.3:5000/v2/?token=abc": dial tcp 10.1.2.3:5000: refused`: `` +
			`Get "[address]": dial tcp [address]: refused`,
		"lookup db.internal on [fd00::53]:53: no such host":  "lookup [address] on [address]: no such host",
		"lookup vault on 127.0.0.53:53: no such host":        "lookup [address] on [address]: no such host",
		"dial tcp fe80::1%eth0: timeout":                     "dial tcp [address]: timeout",
		"open /var/lib/lighter-hub/scratch/x: no space left": "open [path]: no space left",
		"answered Authorization: Bearer eyJhbGc":             "answered Authorization: Bearer [hidden]",
		"cache:6379 is away":                                 "[address] is away",
		"blob sha256:0123456789abcdef has another digest":    "blob sha256:0123456789abcdef has another digest",
	} {
		if got := Redact(text, name); got != want {
			t.Errorf("%s\n%q, want\n%q", text, got, want)
		}
	}
}
