"""The place Speed: how long products take with weights in each format, on a recorded machine and here."""

from app.sections import speed, speed_more

TITLE, NAME = "Speed", "speed"
SECTIONS = (speed.SECTION, speed.TOKENS, speed.ERRORS, speed_more.SECTION)
