package supervise

import "bytes"

// A keyLine follows the keys that a person types and knows whether a line is being typed: text was
// typed, or recalled, since the last Enter. It is careful: after a key whose effect on the line it does
// not know, such as an arrow, only Enter or Ctrl-C ends the line.
type keyLine struct {
	characters int    // typed at the end of the line
	edited     bool   // a key had an effect that is not known
	pasting    bool   // inside of a bracketed paste, where Enter ends no line
	escaped    []byte // of an escape sequence, so far; nil outside
	last       byte   // the last key
}

// The keys that matter.
const (
	keyInterrupt = 0x03 // Ctrl-C
	keyEnd       = 0x04 // Ctrl-D
	keyBack      = 0x08
	keyClear     = 0x15 // Ctrl-U
	keyEscape    = 0x1b
	keyDelete    = 0x7f
)

// typing reports whether a line is being typed.
func (k *keyLine) typing() bool { return k.characters > 0 || k.edited || k.pasting }

// submit ends the line.
func (k *keyLine) submit() { k.characters, k.edited = 0, false }

// take takes keys as one read of the terminal returns them.
func (k *keyLine) take(keys []byte) {
	for i, b := range keys {
		switch {
		case k.escaped != nil:
			k.escape(b)
		case b == keyEscape:
			if i+1 < len(keys) { // otherwise it is the key, which types nothing
				k.escaped = []byte{}
			}
		default:
			k.key(b)
		}
		k.last = b
	}
}

// key takes a key outside of escape sequences.
func (k *keyLine) key(b byte) {
	switch {
	case k.pasting:
		k.edited = true
	case b == '\r' || b == '\n':
		if k.last == '\\' { // the program may continue the line
			k.edited = true
			return
		}
		k.submit()
	case b == keyInterrupt:
		k.submit()
	case b == keyClear && !k.edited:
		k.characters = 0
	case b == keyBack || b == keyDelete:
		k.characters = max(0, k.characters-1)
	case b == keyEnd:
	case b < ' ':
		k.edited = true
	case b&0xc0 != 0x80: // not a later byte of a character
		k.characters++
	}
}

// escape takes a byte of an escape sequence.
func (k *keyLine) escape(b byte) {
	k.escaped = append(k.escaped, b)
	s := k.escaped
	switch s[0] {
	case '[':
		if len(s) > 1 && b >= '@' && b <= '~' {
			k.escaped = nil
			k.control(string(s[1:]))
		}
	case ']', 'P', '_', '^': // a text that the terminal answers, up to BEL or ESC \
		if b == '\a' || bytes.HasSuffix(s, []byte{keyEscape, '\\'}) {
			k.escaped = nil
		}
	case 'O':
		if len(s) > 1 { // an arrow or a function key
			k.escaped, k.edited = nil, true
		}
	default: // Alt and a key
		k.escaped, k.edited = nil, true
	}
}

// control takes the parameters and the final byte of a control sequence.
func (k *keyLine) control(s string) {
	switch final := s[len(s)-1]; {
	case s == "200~":
		k.pasting, k.edited = true, true
	case s == "201~":
		k.pasting = false
	case k.pasting:
	case s == "13u" || s == "99;5u": // Enter and Ctrl-C in the keyboard protocol of kitty
		k.submit()
	case s[0] == '?' || s[0] == '<' || s[0] == '>' || bytes.IndexByte([]byte("IORcnty"), final) >= 0:
		// The terminal reports something: focus, mouse, position, attributes.
	default:
		k.edited = true
	}
}
