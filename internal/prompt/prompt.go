// Package prompt writes texts for language models. Text of other agents, and text from outside, reaches
// a model only inside a frame:
//
//	=== 46e2f3ef5b1c77aa message 5: request from lead to builder-1 ===
//	Look at the login page
//	=== 46e2f3ef5b1c77aa end ===
//
// The mark in both lines is new for each result, so no text can imitate the end of its own frame, or
// another frame. The lines outside of frames are those of the program. They contain no text of others
// except names, ids and other single words (Word).
//
// A Voice says how commands and times are named: for a shell, or as calls of tools.
package prompt

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode"
)

// NewMark returns the mark of a result: 64 random bits as 16 hexadecimal digits.
func NewMark() string {
	bits := make([]byte, 8)
	_, _ = rand.Read(bits) // it never fails: crypto/rand ends the process instead
	return hex.EncodeToString(bits)
}

// Frame returns text of others between two lines with a mark. The title is the program's own: it says
// what the text is and who wrote it. A mark that is empty or occurs in the text is replaced by a new one.
// Control characters, and characters that reorder or break lines, are replaced.
func Frame(mark, title, text string) string {
	text = strings.Trim(clean(text), "\n")
	for mark == "" || strings.Contains(text, mark) {
		mark = NewMark()
	}
	if text != "" {
		text += "\n"
	}
	return begin(mark, title) + text + end(mark)
}

func begin(mark, title string) string { return fmt.Sprintf("=== %s %s ===\n", mark, oneLine(title)) }

func end(mark string) string { return fmt.Sprintf("=== %s end ===\n", mark) }

// clean replaces the characters that a program or a model may take for the end of a line, and those
// that change what a person sees. Newlines and tabs stay.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return r
		case unicode.IsControl(r), unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp):
			return unicode.ReplacementChar
		}
		return r
	}, strings.ReplaceAll(s, "\r\n", "\n"))
}

func oneLine(s string) string { return strings.Join(strings.Fields(clean(s)), " ") }

// word matches a name, an id, a path or a value without spaces and quotes.
var word = regexp.MustCompile(`^[A-Za-z0-9._:/@%+=,-]{1,128}$`)

// Word reports whether a text is a single word, such as the names and ids that the broker has checked:
// at most 128 letters, digits and characters of paths. A word may stand outside of a frame.
func Word(s string) bool { return word.MatchString(s) }

// A Writer writes one result for a model. What is written to it is text of others: it is kept until
// Say, Frame, Next or Flush, and then written as one frame. Say writes lines of the program itself. So
// a text is inside of a frame unless the program says otherwise. A Writer is for one goroutine.
type Writer struct {
	out   io.Writer
	marks func() string
	mark  string // of this result; "" until it is needed
	title string
	text  bytes.Buffer // of others, for the next frame
}

// NewWriter returns a writer of a result. The function marks returns a new mark at each call. The title
// is that of the frames around what is written to the Writer.
func NewWriter(out io.Writer, marks func() string, title string) *Writer {
	return &Writer{out: out, marks: marks, title: title}
}

// Write takes text of others. It implements io.Writer, and returns no error.
func (w *Writer) Write(p []byte) (int, error) { return w.text.Write(p) }

// Say writes one line of the program outside of frames. Of others, it contains single words only.
func (w *Writer) Say(line string) {
	_ = w.Flush() // the error of the line is the same
	fmt.Fprintln(w.out, strings.TrimRight(strings.Join(strings.Split(clean(line), "\n"), " "), " "))
}

// Mark returns the mark of the frames of this result.
func (w *Writer) Mark() string {
	if w.mark == "" {
		w.mark = w.marks()
	}
	return w.mark
}

// Frame writes a frame with its own title.
func (w *Writer) Frame(title, text string) {
	_ = w.Flush() // as in Say
	fmt.Fprint(w.out, Frame(w.Mark(), title, text))
}

// Flush writes what was written to the Writer so far as a frame, if there is anything.
func (w *Writer) Flush() error {
	if w.text.Len() == 0 {
		return nil
	}
	text := w.text.String()
	w.text.Reset()
	_, err := io.WriteString(w.out, Frame(w.Mark(), w.title, text))
	return err
}

// Next ends a result and begins another one on the same output, with a new mark.
func (w *Writer) Next() error {
	err := w.Flush()
	w.mark = ""
	return err
}

// Shorten cuts the middle out of a result that is longer than most bytes, at the ends of lines. The
// last keep bytes stay, because they say what to do next. A frame that is cut gets the line that ends
// or begins it, so that no text of others is outside of a frame. The result may be a few lines longer
// than most.
func Shorten(text string, most, keep int) string {
	if len(text) <= most {
		return text
	}
	head, tail := text[:most-keep], text[len(text)-keep:]
	if i := strings.LastIndexByte(head, '\n'); i >= 0 {
		head = head[:i+1]
	}
	if i := strings.IndexByte(tail, '\n'); i >= 0 {
		tail = tail[i+1:]
	}
	left := len(text) - len(head) - len(tail)
	cutIn, cutOut := inside(head), inside(text[:len(text)-len(tail)])
	if cutIn != "" {
		head += end(cutIn)
	}
	if cutOut != "" {
		tail = begin(cutOut, "the rest of the text") + tail
	}
	return head + fmt.Sprintf("[… %d bytes left out …]\n", left) + tail
}

// opening matches the first line of a frame.
var opening = regexp.MustCompile(`^=== ([0-9a-f]+) .* ===$`)

// inside returns the mark of the frame that is open at the end of the first part of a result; "" if
// none is.
func inside(part string) string {
	mark := ""
	for line := range strings.Lines(part) {
		switch m := opening.FindStringSubmatch(strings.TrimSuffix(line, "\n")); {
		case mark == "" && m != nil:
			mark = m[1]
		case mark != "" && line == end(mark):
			mark = ""
		}
	}
	return mark
}
