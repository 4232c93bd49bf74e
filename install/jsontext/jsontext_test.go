package jsontext

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// A key is added, or gets a new value, and the other bytes stay.
func TestSet(t *testing.T) {
	const path = "features.new"
	for text, want := range map[string]string{
		"{}":                             "{\n  \"features\": {\"new\": true}\n}",
		" { }\n":                         " {\n  \"features\": {\"new\": true}\n }\n",
		"{\n}\n":                         "{\n  \"features\": {\"new\": true}\n}\n",
		"{\r\n}\r\n":                     "{\r\n  \"features\": {\"new\": true}\r\n}\r\n",
		`{"a":[1, {"b": "},"}]}`:         `{"a":[1, {"b": "},"}],"features":{"new": true}}`,
		`{"a": 1}`:                       `{"a": 1, "features": {"new": true}}`,
		`{"a": 1, "b" : -1.5e3 }`:        `{"a": 1, "b" : -1.5e3, "features" : {"new": true} }`,
		"{\n\t\"a\": {},\n\t\"b\": 2\n}": "{\n\t\"a\": {},\n\t\"b\": 2,\n\t\"features\": {\"new\": true}\n}",
		`{"features": {}, "a": 1}`:       `{"features": {"new": true}, "a": 1}`,
		`{"features": {"new": false}}`:   `{"features": {"new": true}}`,
		"{\n \"features\": {\n  \"x\": true\n }\n}": "{\n \"features\": {\n  \"x\": true,\n  \"new\": true\n }\n}",
	} {
		edit, err := Set([]byte(text), json.RawMessage("true"), strings.Split(path, ".")...)
		got := edit.Apply([]byte(text))
		if err != nil || string(got) != want || !json.Valid(got) {
			t.Errorf("%q: got %q, %v; want %q", text, got, err, want)
		}
		if value, err := Lookup(got, strings.Split(path, ".")...); err != nil || string(value) != "true" {
			t.Errorf("%q: the value is %q, %v; want true", got, value, err)
		}
		if back := edit.Inverse(); !back.Fits(got) || string(back.Apply(got)) != text {
			t.Errorf("%q: undone, it is %q", text, back.Apply(got))
		}
		removed, err := Remove(got, "features")
		if err != nil {
			t.Error(err)
		}
		before, after := map[string]any{}, map[string]any{}
		if err := json.Unmarshal(removed.Apply(got), &after); err != nil {
			t.Errorf("%q: without the key: %v in %q", got, err, removed.Apply(got))
		}
		if _ = json.Unmarshal([]byte(text), &before); true {
			delete(before, "features")
		}
		if !reflect.DeepEqual(before, after) {
			t.Errorf("%q: without the key, it is %q", text, removed.Apply(got))
		}
	}
}

func TestRefusals(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "line 1",
		"{\n\n":                    "line 2",
		"{\n \"a\": 1,\n}":         "line 3",
		"{\"a\": 1} x":             "line 1",
		"[1]":                      "no object",
		"null":                     "no object",
		"{\"a\": 1,\n\"a\": 2}":    "line 2: the key \"a\" occurs twice",
		`{"features": null}`:       "features is no object",
		"// comment\n{}":           "line 1",
		`{"features": {"a": tru}}`: "line 1",
	} {
		if _, err := Set([]byte(text), json.RawMessage("1"), "features", "b"); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error with %q", text, err, want)
		}
	}
	if empty, err := Empty([]byte(" {\n}")); err != nil || !empty {
		t.Errorf("an object without keys: got %t, %v", empty, err)
	}
	if e, err := Remove([]byte(`{"a": 1}`), "b", "c"); err != nil || e != (Edit{}) {
		t.Errorf("a key that does not exist: got %+v, %v; want no edit", e, err)
	}
}

// Whatever the text is, an edit can be undone, and its result is what was asked for.
func FuzzSet(f *testing.F) {
	f.Add("{\n  \"a\": 1\n}\n", "a")
	f.Add(`{"a":{"b":[]}}`, "a.b")
	f.Add(`{"a":{"b":"\ud800"}, "c" : {} }`, "c.d.e")
	f.Fuzz(func(t *testing.T, text, path string) {
		keys := strings.Split(path, ".")
		edit, err := Set([]byte(text), json.RawMessage("true"), keys...)
		if err != nil || strings.ToValidUTF8(path, "") != path {
			return
		}
		got := edit.Apply([]byte(text))
		if value, err := Lookup(got, keys...); err != nil || string(value) != "true" {
			t.Errorf("%q: the value is %q, %v", got, value, err)
		}
		if back := edit.Inverse(); !back.Fits(got) || string(back.Apply(got)) != text {
			t.Errorf("undone, it is %q", back.Apply(got))
		}
		if edit, err := Remove(got, keys...); err != nil || !json.Valid(edit.Apply(got)) {
			t.Errorf("without the key, it is %q, %v", edit.Apply(got), err)
		}
	})
}
