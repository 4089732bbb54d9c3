// Package worktest shows in a test what a new kind of joint work needs: reminders, with all that votes or handoffs have.
package worktest
